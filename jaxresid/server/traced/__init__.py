"""The last results of traces in the editor: figures at the lines that they are of."""
