// The pass itself, compiled for each instruction set behind linear_kernel.h and attention_kernel.h.
//
// One parallel region for all layers: threads meet at barriers and take pieces of the matrices as they come. A
// row's bits depend on the row, and on the keys and values it sees; never on the other rows, or on threads.

// The sum of squares in 16 lanes on any processor, the lanes added in order.
INLINE float squares(const float *x, int64_t count) {
    alignas(64) float lanes[16];
    Lanes sum[16 / WIDTH];
    UNROLL for (int j = 0; j < 16 / WIDTH; j++) sum[j] = all(0.0f);
    int64_t whole = count / 16 * 16;
    for (int64_t i = 0; i < whole; i += 16)
        UNROLL for (int j = 0; j < 16 / WIDTH; j++) {
            Lanes value = load(x + i + j * WIDTH);
            sum[j] = multiply_add(value, value, sum[j]);
        }
    UNROLL for (int j = 0; j < 16 / WIDTH; j++) store(lanes + j * WIDTH, sum[j]);
    for (int64_t i = whole; i < count; i++) lanes[i - whole] += x[i] * x[i];
    float total = 0.0f;
    for (int i = 0; i < 16; i++) total += lanes[i];
    return total;
}

// Root mean square norm of one row.
TARGET static void norm_row(const float *x, const float *scale, float epsilon, int64_t count, float *to) {
    float factor = 1.0f / __builtin_sqrtf(squares(x, count) / (float)count + epsilon);
    for (int64_t i = 0; i < count; i++) to[i] = scale[i] * (x[i] * factor);
}

// to = silu(gate) * up.
TARGET static void gated(const float *gate, const float *up, int64_t count, float *to) {
    const Lanes zero = all(0.0f), one = all(1.0f), negative = all(-1.4426950408889634f);
    for (int64_t i = 0; i < count; i += WIDTH) {
        Lanes x = load(gate + i), minus = subtract(zero, x);
        // x / (1 + e^-x), from powers of at most one.
        Lanes above = power_of_two(multiply(larger(minus, zero), negative));
        Lanes below = add(one, power_of_two(multiply(larger(x, minus), negative)));
        store(to + i, multiply(divide(multiply(x, above), below), load(up + i)));
    }
}

// Meet the other threads. Spinning is quickest; a thread that has to wait long lets others run.
TARGET static void meet(Barrier &barrier, int64_t threads) {
    if (threads == 1) return;
    int64_t generation = __atomic_load_n(&barrier.generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&barrier.arrived, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&barrier.arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier.generation, generation + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t spins = 0; __atomic_load_n(&barrier.generation, __ATOMIC_ACQUIRE) == generation; spins++) {
        if (spins < 2000)
            pause_briefly();
        else
            sched_yield();
    }
}

// Queries and keys get their rotation, keys and values go into the cache; for `row` of the pass.
TARGET static void place_row(DecoderJob &job, int64_t index, int64_t row) {
    const DecoderPass &pass = job.pass;
    const DecoderModel &model = *pass.model;
    const DecoderLayer &layer = model.layers[index];
    int64_t size = model.size, half = size / 2, both = model.heads + model.kv_heads;
    int64_t group = model.heads / model.kv_heads;
    float *projected = job.at(job.layout.projected) + row * (both + model.kv_heads) * size;
    const float *cosine = pass.cosine + row * half, *sine = pass.sine + row * half;
    float factor = layer.scale * 1.4426950408889634f;  // the attention takes powers of two
    for (int64_t head = 0; head < both; head++) {
        float *x = projected + head * size;
        if (layer.head_scale) norm_row(x, layer.head_scale + head * size, model.epsilon, size, x);
        for (int64_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half];
            x[i] = a * cosine[i] - b * sine[i];
            x[i + half] = b * cosine[i] + a * sine[i];
        }
        if (head >= model.heads) continue;
        float *scaled = job.attention.scaled(head / group) + (head % group * pass.rows + row) * size;
        for (int64_t i = 0; i < size; i++) scaled[i] = x[i] * factor;
        if (pass.queries)
            memcpy(pass.queries + ((index * model.heads + head) * pass.rows + row) * size, x, sizeof(float) * size);
    }
    for (int64_t head = 0; head < model.kv_heads; head++) {
        const float *key = projected + (model.heads + head) * size, *value = key + model.kv_heads * size;
        int64_t key_at = head * pass.key_head + (pass.prefix + row) * pass.key_row;
        int64_t value_at = head * pass.value_head + (pass.prefix + row) * pass.value_row;
        if (pass.half) {
            uint16_t *key_to = (uint16_t *)pass.keys[index] + key_at;
            uint16_t *value_to = (uint16_t *)pass.values[index] + value_at;
            for (int64_t i = 0; i < size; i++) {
                key_to[i] = half_of(key[i]);
                value_to[i] = half_of(value[i]);
            }
        } else {
            memcpy((float *)pass.keys[index] + key_at, key, sizeof(float) * size);
            memcpy((float *)pass.values[index] + value_at, value, sizeof(float) * size);
        }
    }
}

// What a thread knows of itself.
struct Worker {
    DecoderJob &job;
    int64_t number, count;
    float *normed, *sums, *gate, *up, *linear;
};

// Panels that a thread takes at once: fewer where there would not be enough pieces for all threads.
INLINE int64_t piece_of(const Worker &worker, int64_t panels) {
    return panels >= 2 * PIECE_PANELS * worker.count ? PIECE_PANELS : GROUP_PANELS;
}

// All rows of one matrix; pieces of its panels are taken as they come.
TARGET static void multiply_shared(Worker &worker, const Weights &weights, const float *x, int64_t rows, float *y,
                                   bool add, int64_t *counter) {
    int64_t panels = panel_count(weights), step = piece_of(worker, panels);
    block_sums(weights, x, rows, weights.inputs, worker.sums);
    for (;;) {
        int64_t first = __atomic_fetch_add(counter, step, __ATOMIC_RELAXED);
        if (first >= panels) return;
        multiply(weights, x, rows, weights.inputs, worker.sums, y, weights.outputs, add, first,
                 smaller(first + step, panels), worker.linear);
    }
}

TARGET static void feed_forward_shared(Worker &worker, const DecoderLayer &layer, int64_t rows, int64_t *counter) {
    DecoderJob &job = worker.job;
    int64_t outputs = layer.gate.outputs, panels = panel_count(layer.gate), step = piece_of(worker, panels);
    int64_t width = step * PANEL;
    float *activated = job.at(job.layout.activated);
    block_sums(layer.gate, worker.normed, rows, layer.gate.inputs, worker.sums);
    bool same_blocks = layer.up.block == layer.gate.block && layer.up.format == layer.gate.format &&
                       layer.up.has_minimum == layer.gate.has_minimum;
    for (;;) {
        int64_t first = __atomic_fetch_add(counter, step, __ATOMIC_RELAXED);
        if (first >= panels) return;
        int64_t last = smaller(first + step, panels), count = smaller(last * PANEL, outputs) - first * PANEL;
        // The product is written at its own columns: the buffers stand for those of this piece.
        multiply(layer.gate, worker.normed, rows, layer.gate.inputs, worker.sums, worker.gate - first * PANEL, width,
                 false, first, last, worker.linear);
        if (!same_blocks) block_sums(layer.up, worker.normed, rows, layer.up.inputs, worker.sums);
        multiply(layer.up, worker.normed, rows, layer.up.inputs, worker.sums, worker.up - first * PANEL, width, false,
                 first, last, worker.linear);
        if (!same_blocks) block_sums(layer.gate, worker.normed, rows, layer.gate.inputs, worker.sums);
        for (int64_t row = 0; row < rows; row++) {
            float *gate = worker.gate + row * width;
            gated(gate, worker.up + row * width, round_up(count, WIDTH), gate);
            memcpy(activated + row * outputs + first * PANEL, gate, sizeof(float) * count);
        }
    }
}

TARGET static void norm_rows(Worker &worker, const float *scale, int64_t first, int64_t rows) {
    const DecoderPass &pass = worker.job.pass;
    int64_t width = pass.model->width;
    for (int64_t row = 0; row < rows; row++)
        norm_row(pass.states + (first + row) * width, scale, pass.model->epsilon, width, worker.normed + row * width);
}

TARGET static void decode_layer(Worker &worker, int64_t index) {
    DecoderJob &job = worker.job;
    const DecoderPass &pass = job.pass;
    const DecoderModel &model = *pass.model;
    const DecoderLayer &layer = model.layers[index];
    int64_t *counters = job.counter(index * PHASES_PER_LAYER);

    norm_rows(worker, layer.before_attention, 0, pass.rows);
    multiply_shared(worker, layer.query_key_value, worker.normed, pass.rows, job.at(job.layout.projected), false,
                    counters);
    if (worker.number == 0) aim_attention(job, index);
    meet(job.barrier, worker.count);
    for (int64_t row = worker.number; row < pass.rows; row += worker.count) place_row(job, index, row);
    meet(job.barrier, worker.count);
    work(&job.attention);
    meet(job.barrier, worker.count);
    multiply_shared(worker, layer.attention_output, job.at(job.layout.attended), pass.rows, pass.states, true,
                    counters + 1);
    meet(job.barrier, worker.count);
    norm_rows(worker, layer.before_feed_forward, 0, pass.rows);
    feed_forward_shared(worker, layer, pass.rows, counters + 2);
    meet(job.barrier, worker.count);
    multiply_shared(worker, layer.down, job.at(job.layout.activated), pass.rows, pass.states, true, counters + 3);
    meet(job.barrier, worker.count);
}

// What each thread runs.
TARGET static void decode(void *data) {
    DecoderJob &job = *(DecoderJob *)data;
    const DecoderPass &pass = job.pass;
    const DecoderModel &model = *pass.model;
    bool several = pass.threads > 1 && pass.parallel;
    int64_t number = several ? pass.thread_number() : 0, count = several ? pass.thread_count() : 1;
    float *scratch = job.at(job.layout.scratch) + number * job.layout.scratch_size;
    Worker worker = {job, number, count, scratch + job.layout.normed, scratch + job.layout.sums,
                     scratch + job.layout.gate, scratch + job.layout.up, scratch + job.layout.linear};
    for (int64_t index = 0; index < model.layer_count; index++) decode_layer(worker, index);
    if (pass.logits_rows) {
        norm_rows(worker, model.final_scale, pass.rows - pass.logits_rows, pass.logits_rows);
        multiply_shared(worker, model.output, worker.normed, pass.logits_rows, pass.logits, false,
                        job.counter(model.layer_count * PHASES_PER_LAYER));
    }
}
