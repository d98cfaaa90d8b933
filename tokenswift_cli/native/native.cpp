// All that is compiled, as one unit: the attention, the matrices, the decoder made of both, the choice of a token, and
// the copying of rows.

#include "attention.cpp"
#include "linear.cpp"
#include "decoder.cpp"
#include "choice.cpp"
#include "rows.cpp"
