"""How the house is kept: tests about the code and the docs themselves."""
