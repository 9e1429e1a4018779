"""The report on one screen: the answer first, then what it is made of."""
