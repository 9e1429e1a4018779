"""The formats that findings are printed in: one module for each, named as the format."""
