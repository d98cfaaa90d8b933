"""A decoder with few operators for models of the Llama family, and its linear layers."""
