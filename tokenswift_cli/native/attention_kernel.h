// The attention itself, written once in terms of lanes and compiled for each instruction set.
//
// Included inside a namespace after one of the lanes_*.h. A piece of work is one key-value head and one
// segment of positions. The keys of a block are turned so that lanes run over keys: a score is then a plain
// sum over the key's elements, the same on any number of lanes. Lanes of the output run over value elements
// and add keys in the order of their positions. So a row's bits depend on its query and on the keys and
// values it sees, by position, and on nothing else: not on the other rows, not on what of it is prefix and
// what is tree, not on threads.

// 2^x for x <= 0; 0 below -127; what is not a number stays so.
INLINE Lanes power_of_two(Lanes x) {
    x = larger(all(-127.0f), x);
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits.
    Lanes shifted = add(x, all(12582912.0f));
    Lanes rest = subtract(x, subtract(shifted, all(12582912.0f)));
    // Minimax polynomial on [-1/2, 1/2], exact at 0, relative error 2e-9.
    Lanes y = multiply_add(all(0.00015353361959569156f), rest, all(0.0013398875016719103f));
    y = multiply_add(y, rest, all(0.00961843691766262f));
    y = multiply_add(y, rest, all(0.055503323674201965f));
    y = multiply_add(y, rest, all(0.24022647738456726f));
    y = multiply_add(y, rest, all(0.6931471824645996f));
    y = multiply_add(y, rest, all(1.0f));
    return scale_by_power(y, shifted);
}

// Ask for what the next block holds, while this one is computed. The processor's own prefetcher is thrown off
// by two streams and the work between. Into the second-level cache: the first holds the block at hand. The
// address may lie past the end of the cache; asking for it does nothing then.
INLINE void fetch(const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)((uintptr_t)from + i), 0, 2);
}

// Turn `count` keys into `to`, [key size, BLOCK_KEYS], and fill the rest with zeros: what memory happens to hold
// there would only slow the arithmetic down if it reads as subnormal numbers.
template <typename Stored>
TARGET static void turn_keys(const Stored *keys, int64_t stride, int64_t count, int64_t size, Stored *staging,
                             float *to) {
    int64_t even = size / 8 * 8;
    for (int64_t key = 0; key < count; key += TRANSPOSED_KEYS) {
        const Stored *from = keys + key * stride;
        int64_t step = stride;
        uintptr_t ahead = (uintptr_t)from + sizeof(Stored) * BLOCK_KEYS * stride;
        if (count - key < TRANSPOSED_KEYS) {  // not past the end of the cache
            memset(staging, 0, sizeof(Stored) * TRANSPOSED_KEYS * size);
            for (int64_t i = 0; i < count - key; i++)
                memcpy(staging + i * size, from + i * stride, sizeof(Stored) * size);
            from = staging;
            step = size;
        }
        for (int64_t column = 0; column < even; column += 8) {
            transpose(from + column, step, to + column * BLOCK_KEYS + key);
            fetch((const void *)(ahead + sizeof(Stored) * column * TRANSPOSED_KEYS),
                  sizeof(Stored) * 8 * TRANSPOSED_KEYS);
        }
        for (int64_t column = even; column < size; column++)
            for (int64_t i = 0; i < TRANSPOSED_KEYS; i++)
                to[column * BLOCK_KEYS + key + i] = portable_single(from[i * step + column]);
    }
    int64_t written = round_up(count, TRANSPOSED_KEYS);
    if (written < BLOCK_KEYS)
        for (int64_t column = 0; column < size; column++)
            memset(to + column * BLOCK_KEYS + written, 0, sizeof(float) * (BLOCK_KEYS - written));
}

// Copy `count` values to rows of `width` floats, the padding zero.
template <typename Stored>
TARGET static void widen_values(const Stored *values, int64_t stride, int64_t count, int64_t size, int64_t width,
                                float *to) {
    int64_t even = size / WIDTH * WIDTH;
    for (int64_t i = 0; i < count; i++) {
        const Stored *from = values + i * stride;
        float *row = to + i * width;
        fetch((const void *)((uintptr_t)from + sizeof(Stored) * BLOCK_KEYS * stride), sizeof(Stored) * size);
        int64_t column = 0;
        for (; column < even; column += WIDTH) store(row + column, widen(from + column));
        for (; column < size; column++) row[column] = portable_single(from[column]);
        for (; column < width; column++) row[column] = 0.0f;
    }
}

// Scores of ROWS queries with BLOCK_KEYS turned keys.
template <int ROWS>
TARGET static void score_tile(const float *query, int64_t size, const float *keys, float *scores,
                              int64_t stride) {
    for (int64_t start = 0; start < BLOCK_KEYS; start += 4 * WIDTH) {
        Lanes sum[ROWS][4];
        UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int j = 0; j < 4; j++) sum[r][j] = all(0.0f);
        for (int64_t k = 0; k < size; k++) {
            Lanes key[4];
            UNROLL for (int j = 0; j < 4; j++) key[j] = load(keys + k * BLOCK_KEYS + start + j * WIDTH);
            UNROLL for (int r = 0; r < ROWS; r++) {
                Lanes element = all(query[r * size + k]);
                UNROLL for (int j = 0; j < 4; j++) sum[r][j] = multiply_add(element, key[j], sum[r][j]);
            }
        }
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int j = 0; j < 4; j++) store(scores + r * stride + start + j * WIDTH, sum[r][j]);
    }
}

// Where values are read from: the cache itself, or the copy that widen_values made of a block.
template <typename Stored>
struct Values {
    const Stored *rows;
    int64_t stride;
    bool cached;
};

// sums = sums * decay + weights @ values, for ROWS rows and COLUMNS * WIDTH value elements.
template <int ROWS, int COLUMNS, typename Stored>
TARGET static void value_tile(float *sums, int64_t width, const float *decay, const float *weights,
                              Values<Stored> values, int64_t start, int64_t count) {
    const Stored *rows = values.rows + start;
    int64_t ahead = values.cached ? sizeof(Stored) * BLOCK_KEYS * values.stride : 0;
    Lanes sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int j = 0; j < COLUMNS; j++)
            sum[r][j] = multiply(load(sums + r * width + start + j * WIDTH), all(decay[r]));
    for (int64_t key = 0; key < count; key++) {
        Lanes value[COLUMNS];
        const Stored *from = rows + key * values.stride;
        UNROLL for (int j = 0; j < COLUMNS; j++) value[j] = widen(from + j * WIDTH);
        if (ahead) fetch((const void *)((uintptr_t)from + ahead), sizeof(Stored) * COLUMNS * WIDTH);
        UNROLL for (int r = 0; r < ROWS; r++) {
            Lanes weight = all(weights[r * BLOCK_KEYS + key]);
            UNROLL for (int j = 0; j < COLUMNS; j++) sum[r][j] = multiply_add(weight, value[j], sum[r][j]);
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int j = 0; j < COLUMNS; j++) store(sums + r * width + start + j * WIDTH, sum[r][j]);
}

template <int ROWS, typename Stored>
TARGET static void add_values(float *sums, int64_t width, const float *decay, const float *weights,
                              Values<Stored> values, int64_t count) {
    int64_t start = 0;
    for (; start + 4 * WIDTH <= width; start += 4 * WIDTH)
        value_tile<ROWS, 4>(sums, width, decay, weights, values, start, count);
    for (; start < width; start += WIDTH)
        value_tile<ROWS, 1>(sums, width, decay, weights, values, start, count);
}

// What the threads keep of one segment while they go through its blocks.
struct Segment {
    const Job *job;
    int64_t begin, end;        // positions
    float *sums, *peaks, *lanes;  // by row: [value width], 1, [SUM_LANES]
    float *tail_scores;        // [folded, tail width]
    const float *tail_values;  // [rows, value width]
};

// Give the new rows that a row sees their positions in the block, and hide what it does not see.
TARGET static void mask_row(const Segment &segment, int64_t row, int64_t block, int64_t inside, float *scores) {
    const Job &job = *segment.job;
    int64_t token = row % job.call.rows, seen = job.seen()[token];
    const int32_t *path = job.path(token);
    const float *tail = segment.tail_scores + row * job.layout.tail_width;
    int64_t filled = inside;
    if (inside < BLOCK_KEYS) {
        int64_t next = block + inside - job.call.prefix;
        for (; filled < BLOCK_KEYS && next < seen; filled++, next++) scores[filled] = tail[path[next]];
        for (; filled < BLOCK_KEYS; filled++) scores[filled] = -INFINITY;
    }
    int64_t hidden = smaller(job.first()[token] - block, BLOCK_KEYS);
    for (int64_t i = 0; i < hidden; i++) scores[i] = -INFINITY;
}

// The block's values of new rows: every row sees its own.
TARGET static void add_tail_values(const Segment &segment, int64_t row, int64_t block, int64_t inside,
                                   const float *weights) {
    const Job &job = *segment.job;
    int64_t token = row % job.call.rows, width = job.layout.value_width;
    const int32_t *path = job.path(token);
    int64_t next = block + inside - job.call.prefix;
    int64_t count = smaller(BLOCK_KEYS - inside, job.seen()[token] - next);
    float *sums = segment.sums + row * width;
    for (int64_t i = 0; i < count; i++) {
        // Not even a zero weight may touch what the window hides.
        if (block + inside + i < job.first()[token]) continue;
        const float *value = segment.tail_values + path[next + i] * width;
        Lanes weight = all(weights[inside + i]);
        for (int64_t j = 0; j < width; j += WIDTH)
            store(sums + j, multiply_add(weight, load(value + j), load(sums + j)));
    }
}

// Scores to weights for ROWS rows: the running softmax.
template <int ROWS>
TARGET static void weigh(const Segment &segment, int64_t row, float *scores, float *decay) {
    float peak[16], before[16];
    for (int i = 0; i < 16; i++) peak[i] = before[i] = 0.0f;
    for (int r = 0; r < ROWS; r++) {
        Lanes most = load(scores + r * BLOCK_KEYS);
        UNROLL for (int j = WIDTH; j < BLOCK_KEYS; j += WIDTH)
            most = larger(most, load(scores + r * BLOCK_KEYS + j));
        float old = segment.peaks[row + r], now = largest(most);
        now = old > now ? old : now;
        segment.peaks[row + r] = now;
        // Nothing seen yet: any finite peak gives weights of zero.
        peak[r] = now == -INFINITY ? 0.0f : now;
        before[r] = old;
    }
    for (int i = 0; i < ROWS; i += WIDTH)
        store(decay + i, power_of_two(subtract(load(before + i), load(peak + i))));
    for (int r = 0; r < ROWS; r++) {
        float *lanes = segment.lanes + (row + r) * SUM_LANES, *score = scores + r * BLOCK_KEYS;
        Lanes sum[SUM_LANES / WIDTH], shift = all(peak[r]);
        UNROLL for (int j = 0; j < SUM_LANES / WIDTH; j++)
            sum[j] = multiply(load(lanes + j * WIDTH), all(decay[r]));
        UNROLL for (int i = 0; i < BLOCK_KEYS; i += WIDTH) {
            Lanes weight = power_of_two(subtract(load(score + i), shift));
            store(score + i, weight);
            sum[i % SUM_LANES / WIDTH] = add(sum[i % SUM_LANES / WIDTH], weight);
        }
        UNROLL for (int j = 0; j < SUM_LANES / WIDTH; j++) store(lanes + j * WIDTH, sum[j]);
    }
}

// One block of one segment: what every tile of rows reads.
template <typename Stored>
struct Block {
    int64_t begin;      // position of its first key
    int64_t inside;     // how many of its keys belong to the prefix
    bool masked;        // some row does not see all of it, or sees new rows in it
    const float *keys;  // turned
    Values<Stored> values;
};

template <int ROWS, typename Stored>
TARGET static void attend_tile(const Segment &segment, const Block<Stored> &block, const float *query,
                               int64_t row) {
    const Job &job = *segment.job;
    int64_t size = job.call.key_size, width = job.layout.value_width;
    alignas(64) float scores[ROWS * BLOCK_KEYS];
    alignas(64) float decay[16];
    if (block.inside) score_tile<ROWS>(query + row * size, size, block.keys, scores, BLOCK_KEYS);
    if (block.masked)
        for (int r = 0; r < ROWS; r++)
            mask_row(segment, row + r, block.begin, block.inside, scores + r * BLOCK_KEYS);
    weigh<ROWS>(segment, row, scores, decay);
    add_values<ROWS>(segment.sums + row * width, width, decay, scores, block.values, block.inside);
    if (block.inside < BLOCK_KEYS)
        for (int r = 0; r < ROWS; r++)
            add_tail_values(segment, row + r, block.begin, block.inside, scores + r * BLOCK_KEYS);
}

// All rows, in tiles that fit the registers.
template <typename Stored>
TARGET static void attend_block(const Segment &segment, const Block<Stored> &block, const float *query) {
    int64_t rows = segment.job->folded, row = 0;
    if (TILE_ROWS >= 6)
        for (; rows - row >= 6; row += 6) attend_tile<TILE_ROWS >= 6 ? 6 : 1>(segment, block, query, row);
    if (TILE_ROWS >= 4)
        for (; rows - row >= 4; row += 4) attend_tile<TILE_ROWS >= 4 ? 4 : 1>(segment, block, query, row);
    // Four are two and two, not three and a lonely one.
    for (; rows - row >= 3 && rows - row != 4; row += 3) attend_tile<3>(segment, block, query, row);
    for (; rows - row >= 2; row += 2) attend_tile<2>(segment, block, query, row);
    if (row < rows) attend_tile<1>(segment, block, query, row);
}

TARGET static void score_rows(const float *query, int64_t rows, int64_t size, const float *keys, float *scores,
                              int64_t stride) {
    int64_t row = 0;
    for (; row + 2 <= rows; row += 2) score_tile<2>(query + row * size, size, keys, scores + row * stride, stride);
    if (row < rows) score_tile<1>(query + row * size, size, keys, scores + row * stride, stride);
}

template <typename Stored>
TARGET static void attend_segment(const Job &job, int64_t head, int64_t index, float *scratch) {
    const Call &call = job.call;
    const Layout &layout = job.layout;
    int64_t size = call.key_size, width = layout.value_width, folded = job.folded;
    const Stored *keys = (const Stored *)call.keys + head * call.key_head;
    const Stored *values = (const Stored *)call.values + head * call.value_head;
    const float *query = job.scaled(head);
    float *block_keys = scratch + layout.block_keys, *block_values = scratch + layout.block_values;
    Stored *staging = (Stored *)(scratch + layout.staging);

    Segment segment;
    segment.job = &job;
    segment.begin = (layout.first_segment + index) * SEGMENT_KEYS;
    segment.end = smaller(segment.begin + SEGMENT_KEYS, job.longest);
    int64_t part = job.part(head, index);
    segment.sums = job.at(layout.sums) + part * width;
    segment.peaks = job.at(layout.peaks) + part;
    segment.lanes = scratch + layout.lanes;
    segment.tail_scores = scratch + layout.tail_scores;
    segment.tail_values = scratch + layout.tail_values;
    memset(segment.sums, 0, sizeof(float) * folded * width);
    memset(segment.lanes, 0, sizeof(float) * folded * SUM_LANES);
    for (int64_t row = 0; row < folded; row++) segment.peaks[row] = -INFINITY;

    if (segment.end > call.prefix) {
        for (int64_t start = 0; start < call.rows; start += BLOCK_KEYS) {
            int64_t count = smaller(call.rows - start, BLOCK_KEYS);
            turn_keys(keys + (call.prefix + start) * call.key_row, call.key_row, count, size, staging, block_keys);
            score_rows(query, folded, size, block_keys, segment.tail_scores + start, layout.tail_width);
        }
        widen_values(values + call.prefix * call.value_row, call.value_row, call.rows, call.value_size, width,
                     scratch + layout.tail_values);
    }

    for (int64_t block = segment.begin; block < segment.end; block += BLOCK_KEYS) {
        if (block + BLOCK_KEYS <= job.earliest) continue;
        int64_t inside = bigger(0, smaller(call.prefix - block, BLOCK_KEYS));
        bool masked = inside < BLOCK_KEYS || block < job.latest;
        const Stored *from = values + block * call.value_row;
        if (inside)
            turn_keys(keys + block * call.key_row, call.key_row, inside, size, staging, block_keys);
        if (width == call.value_size && (sizeof(Stored) == sizeof(float) || folded <= TILE_ROWS)) {
            Values<Stored> direct = {from, call.value_row, true};
            attend_block(segment, Block<Stored>{block, inside, masked, block_keys, direct}, query);
        } else {
            widen_values(from, call.value_row, inside, call.value_size, width, block_values);
            Values<float> copied = {block_values, width, false};
            attend_block(segment, Block<float>{block, inside, masked, block_keys, copied}, query);
        }
    }

    for (int64_t row = 0; row < folded; row++) {
        float total = 0.0f;
        for (int i = 0; i < SUM_LANES; i++) total += segment.lanes[row * SUM_LANES + i];
        job.at(layout.totals)[part + row] = total;
    }
}

// The rows of one head from their partial results, in the order of the segments.
TARGET static void merge(const Job &job, int64_t head) {
    const Call &call = job.call;
    const Layout &layout = job.layout;
    int64_t width = layout.value_width;
    const float *sums = job.at(layout.sums), *peaks = job.at(layout.peaks), *totals = job.at(layout.totals);
    for (int64_t row = 0; row < job.folded; row++) {
        float peak = -INFINITY, total = 0.0f;
        for (int64_t s = 0; s < layout.segments; s++) {
            float other = peaks[job.part(head, s) + row];
            peak = other > peak ? other : peak;
        }
        float *merged = job.at(layout.sums) + (job.part(head, 0) + row) * width;
        for (int64_t s = 0; s < layout.segments; s++) {
            int64_t part = job.part(head, s) + row;
            alignas(64) float share[WIDTH];
            store(share, power_of_two(all(peaks[part] - peak)));
            total += share[0] * totals[part];
            const float *sum = sums + part * width;
            Lanes factor = all(share[0]);
            for (int64_t j = 0; j < width; j += WIDTH) {
                Lanes scaled = multiply(load(sum + j), factor);
                store(merged + j, s ? add(load(merged + j), scaled) : scaled);
            }
        }
        Lanes inverse = all(1.0f / total);
        for (int64_t j = 0; j < width; j += WIDTH) store(merged + j, multiply(load(merged + j), inverse));
        int64_t group = row / call.rows, token = row % call.rows;
        memcpy(call.output + head * call.output_head + group * call.output_group + token * call.output_row, merged,
               sizeof(float) * call.value_size);
    }
}

// What each thread runs: pieces of work until none is left; the last piece of a head merges it.
TARGET static void work(void *data) {
    Job &job = *(Job *)data;
    int64_t thread = __atomic_fetch_add(&job.entered, 1, __ATOMIC_RELAXED);
    if (thread >= job.call.threads) return;
    float *scratch = job.at(job.layout.scratch) + thread * job.layout.scratch_size;
    int64_t pieces = job.call.kv_heads * job.layout.segments;
    for (;;) {
        int64_t piece = __atomic_fetch_add(&job.next, 1, __ATOMIC_RELAXED);
        if (piece >= pieces) return;
        int64_t head = piece / job.layout.segments, segment = piece % job.layout.segments;
        if (job.call.half)
            attend_segment<uint16_t>(job, head, segment, scratch);
        else
            attend_segment<float>(job, head, segment, scratch);
        if (__atomic_sub_fetch(&job.remaining()[head], 1, __ATOMIC_ACQ_REL) == 0) merge(job, head);
    }
}

#undef TARGET
#undef WIDTH
#undef TILE_ROWS
#undef TRANSPOSED_KEYS
