// All that is compiled, as one unit: the attention, the matrices, the decoder made of both, and the choice of
// a token.

#include "attention.cpp"
#include "linear.cpp"
#include "decoder.cpp"
#include "choice.cpp"
