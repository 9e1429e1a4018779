"""Results as the files of viewers of profiles and traces: pprof and Perfetto."""
