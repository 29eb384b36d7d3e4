"""Time and memory of single steps measured on a GPU, and the program that measured them."""
