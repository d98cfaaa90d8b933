// Takes back the macros of lanes_*.h, so that the next instruction set can define its own.

#undef TARGET
#undef WIDTH
#undef TILE_ROWS
#undef TRANSPOSED_KEYS
