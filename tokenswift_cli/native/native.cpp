// All that is compiled, as one unit: the attention, the matrices, and the decoder made of both.

#include "attention.cpp"
#include "linear.cpp"
#include "decoder.cpp"
