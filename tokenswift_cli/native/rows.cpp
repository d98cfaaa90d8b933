// Rows of many stores at once: from one place to another, in the same stores or in others. Plain C interface.

#include "attention_job.h"

// One store: [heads, any number of rows, row_bytes], a head every `stride` bytes.
struct RowStore {
    char *to;
    const char *from;
    int64_t heads, row_bytes;
    int64_t to_stride, from_stride;
};

struct RowCall {
    const RowStore *stores;
    int64_t stores_size;
    const int64_t *from_rows;       // [rows]; null: the rows from `first` on
    int64_t first, to_row, rows;
};

extern "C" {

// Raised whenever RowStore, RowCall or their meaning changes.
EXPORT int tokenswift_rows_interface() { return 1; }

// Rows are copied one after the other, so that within one store each may come from a place at or behind its own.
EXPORT void tokenswift_copy_rows(const RowCall *call) {
    for (int64_t i = 0; i < call->stores_size; i++) {
        const RowStore &store = call->stores[i];
        const int64_t bytes = store.row_bytes;
        for (int64_t head = 0; head < store.heads; head++) {
            char *to = store.to + head * store.to_stride + call->to_row * bytes;
            const char *from = store.from + head * store.from_stride;
            if (!call->from_rows) {
                memmove(to, from + call->first * bytes, call->rows * bytes);
                continue;
            }
            for (int64_t row = 0; row < call->rows; row++)
                memmove(to + row * bytes, from + call->from_rows[row] * bytes, bytes);
        }
    }
}
}
