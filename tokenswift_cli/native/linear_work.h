// What each thread of tokenswift_linear runs: pieces of the matrix until none is left.

TARGET static void multiply_pieces(void *data) {
    LinearJob &job = *(LinearJob *)data;
    const LinearCall &call = job.call;
    int64_t thread = __atomic_fetch_add(&job.entered, 1, __ATOMIC_RELAXED), panels = panel_count(*call.weights);
    if (thread >= call.threads) return;
    for (;;) {
        int64_t first = __atomic_fetch_add(&job.next, job.piece, __ATOMIC_RELAXED);
        if (first >= panels) return;
        multiply(*call.weights, call.x, call.rows, call.x_stride, job.sums, call.y, call.y_stride, call.add != 0, first,
                 smaller(first + job.piece, panels), job.scratch + thread * LINEAR_SCRATCH);
    }
}
