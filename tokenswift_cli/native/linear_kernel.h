// Multiplication of a few rows by a packed matrix, written once in terms of lanes.
//
// Included inside a namespace after one of the lanes_*.h. Lanes run across outputs, and each sum runs over the inputs
// in one order (see PLAIN_BLOCK). So the bits of y[t, o] depend on x[t, :] and on output o's weights, and on nothing
// else: not on the other rows, not on threads, not on which way below was taken.

static constexpr int PANEL_LANES = PANEL / WIDTH;
// Rows of a tile that multiplies by floats, and of a direct one, which widens the weights itself, once for its rows.
static constexpr int MOST_ROWS = WIDTH == 4 ? 4 : 6;
static constexpr int MOST_DIRECT_ROWS = WIDTH == 16 ? 12 : MOST_ROWS;  // where widening is the dearer part
// With more tiles than this, the weights are widened before, once for all.
static constexpr int DIRECT_TILES = WIDTH == 16 ? 3 : 2;

// Panels of a tile, a part of GROUP_PANELS: its sums, an input's weights and an input must fit the registers.
static constexpr int tile_panels(int rows) {
    if (WIDTH == 16) return rows <= 6 ? 4 : 2;
    if (WIDTH == 8) return rows == 1 ? 4 : rows == 2 ? 2 : 1;
    return rows == 1 ? 2 : 1;
}

// The formats' levels as floats. `from` points to STEP inputs of one panel, of which `index` is meant.
struct Singles {
    static constexpr bool WIDENED = true;  // they are floats as they lie
    static constexpr bool RAGGED = true;   // a block may have any length
    static constexpr int STEP = 4;         // inputs taken together
    INLINE Lanes level(const char *from, int index, int lane) {
        return load((const float *)from + index * PANEL + lane * WIDTH);
    }
};

struct Halves {
    static constexpr bool WIDENED = false;
    static constexpr bool RAGGED = true;
    static constexpr int STEP = 4;
    INLINE Lanes level(const char *from, int index, int lane) {
        return widen((const uint16_t *)from + index * PANEL + lane * WIDTH);
    }
};

struct Brains {
    static constexpr bool WIDENED = false;
    static constexpr bool RAGGED = true;
    static constexpr int STEP = 4;
    INLINE Lanes level(const char *from, int index, int lane) {
        return widen_brain((const uint16_t *)from + index * PANEL + lane * WIDTH);
    }
};

struct Nibbles {
    static constexpr bool WIDENED = false;
    static constexpr bool RAGGED = false;
    static constexpr int STEP = 8;
    INLINE Lanes level(const char *from, int index, int lane) {
        return widen_nibbles(from + lane * WIDTH * 4, index);
    }
};

struct Bytes {
    static constexpr bool WIDENED = false;
    static constexpr bool RAGGED = false;
    static constexpr int STEP = 4;
    INLINE Lanes level(const char *from, int index, int lane) {
        return widen_bytes((const int8_t *)from + index * PANEL + lane * WIDTH);
    }
};

// A group of panels, some of their inputs, and the rows to multiply.
struct Stretch {
    const char *levels;                    // of the first panel and block
    int64_t panel_step, block_step;        // bytes from one panel, or block, to the next
    int64_t eight_step;                    // bytes of 8 inputs
    const char *scales;                    // null: none; minima follow them
    int64_t scale_panel_step, scale_block_step;
    bool has_minimum;
    const float *x;                        // [rows, inputs]
    int64_t x_stride;
    const float *sums;                     // of the blocks of x
    int64_t sums_stride;
    float *totals;                         // [rows, GROUP_PANELS, PANEL]
    int64_t inputs, block;
    const char *soon;                      // as levels: what will be read after this; null: nothing
    int64_t soon_panel_step, soon_block_step;
};

// Compilers that load early run out of registers, and then store and load again in the innermost loop.
#define KEEP_ORDER asm volatile("" ::: "memory")

// Into the second-level cache; the address may lie past the end of the weights.
INLINE void call_up(const char *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)((uintptr_t)from + i), 0, 2);
}

template <int PANELS>
INLINE void call_up_panels(const Stretch &stretch, const char *from, int64_t bytes) {
    for (int p = 0; p < PANELS; p++) call_up(from + p * stretch.soon_panel_step, bytes);
}

// Add one input's products to the sums of a tile.
template <typename Source, int ROWS, int PANELS>
INLINE void add_input(const char *from, int64_t panel_step, int index, const float *x, int64_t x_stride,
                      Lanes (&sum)[ROWS][PANELS * PANEL_LANES]) {
    constexpr int COLUMNS = PANELS * PANEL_LANES;
    if constexpr (ROWS < COLUMNS) {  // whichever is fewer stays in registers
        Lanes input[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) input[r] = all(x[r * x_stride]);
        UNROLL for (int j = 0; j < COLUMNS; j++) {
            Lanes level = Source::level(from + j / PANEL_LANES * panel_step, index, j % PANEL_LANES);
            UNROLL for (int r = 0; r < ROWS; r++) sum[r][j] = multiply_add(input[r], level, sum[r][j]);
        }
    } else {
        Lanes level[COLUMNS];
        UNROLL for (int j = 0; j < COLUMNS; j++)
            level[j] = Source::level(from + j / PANEL_LANES * panel_step, index, j % PANEL_LANES);
        UNROLL for (int r = 0; r < ROWS; r++) {
            Lanes input = all(x[r * x_stride]);
            UNROLL for (int j = 0; j < COLUMNS; j++) sum[r][j] = multiply_add(input, level[j], sum[r][j]);
        }
    }
}

// Add a block's sums to the totals.
template <bool SCALED, bool MINIMUM, int ROWS, int COLUMNS>
INLINE void add_block(const Stretch &stretch, int64_t row, int64_t panel, int64_t block,
                      Lanes (&sum)[ROWS][COLUMNS]) {
    const int64_t panel_step = stretch.scale_panel_step, sums_stride = stretch.sums_stride;
    const char *scales = nullptr;
    const float *sums = nullptr;
    if constexpr (SCALED) scales = stretch.scales + panel * panel_step + block * stretch.scale_block_step;
    if constexpr (MINIMUM) sums = stretch.sums + row * sums_stride + block;
    float *totals = stretch.totals + (row * GROUP_PANELS + panel) * PANEL;
    UNROLL for (int j = 0; j < COLUMNS; j++) {
        Lanes factor, minimum;
        if constexpr (SCALED) {
            const float *from = (const float *)(scales + j / PANEL_LANES * panel_step) + j % PANEL_LANES * WIDTH;
            factor = load(from);
            if constexpr (MINIMUM) minimum = load(from + PANEL);
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            float *place = totals + r * GROUP_PANELS * PANEL + j * WIDTH;
            Lanes total = load(place);
            if constexpr (SCALED)
                total = multiply_add(factor, sum[r][j], total);
            else
                total = add(total, sum[r][j]);
            if constexpr (MINIMUM) total = multiply_add(minimum, all(sums[r * sums_stride]), total);
            store(place, total);
        }
    }
}

template <typename Source, int ROWS, int PANELS>
TARGET static void multiply_tile(const Stretch &stretch, int64_t row, int64_t panel) {
    const int64_t panel_step = stretch.panel_step, x_stride = stretch.x_stride;
    const int64_t bytes = stretch.eight_step * Source::STEP / 8;
    // Few rows wait for memory, which works best with an even stream of requests; many have better to do than to ask.
    constexpr bool SPREAD = ROWS <= 4;
    const int64_t soon_bytes = stretch.soon_block_step * Source::STEP / stretch.block;
    for (int64_t start = 0, block = 0; start < stretch.inputs; start += stretch.block, block++) {
        const char *levels = stretch.levels + panel * panel_step + block * stretch.block_step;
        const float *x = stretch.x + row * x_stride + start;
        int64_t count = smaller(stretch.block, stretch.inputs - start), k = 0;
        const char *soon = nullptr;
        if (stretch.soon && row == 0)
            soon = stretch.soon + panel * stretch.soon_panel_step + block * stretch.soon_block_step;
        if (soon && !SPREAD) call_up_panels<PANELS>(stretch, soon, stretch.soon_block_step);
        Lanes sum[ROWS][PANELS * PANEL_LANES];
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int j = 0; j < PANELS * PANEL_LANES; j++) sum[r][j] = all(0.0f);
        for (; k + Source::STEP <= count; k += Source::STEP, levels += bytes) {
            if (soon && SPREAD) {
                call_up_panels<PANELS>(stretch, soon, soon_bytes);
                soon += soon_bytes;
            }
            UNROLL for (int i = 0; i < Source::STEP; i++) {
                add_input<Source, ROWS, PANELS>(levels, panel_step, i, x + k + i, x_stride, sum);
                if (ROWS > 4 && i % 2) KEEP_ORDER;
            }
        }
        if constexpr (Source::RAGGED)
            for (int i = 0; k + i < count; i++)
                add_input<Source, ROWS, PANELS>(levels, panel_step, i, x + k + i, x_stride, sum);
        if (stretch.has_minimum)
            add_block<true, true>(stretch, row, panel, block, sum);
        else if (stretch.scales)
            add_block<true, false>(stretch, row, panel, block, sum);
        else
            add_block<false, false>(stretch, row, panel, block, sum);
    }
}

// The whole group for ROWS rows.
template <typename Source, int ROWS>
TARGET static void multiply_panels(const Stretch &stretch, int64_t row) {
    constexpr int PANELS = tile_panels(ROWS);
    for (int64_t panel = 0; panel < GROUP_PANELS; panel += PANELS)
        multiply_tile<Source, ROWS, PANELS>(stretch, row, panel);
}

// `rows` rows from `row` on, at most MOST.
template <typename Source, int MOST>
TARGET static void multiply_some(const Stretch &stretch, int64_t row, int64_t rows) {
    if constexpr (MOST > 1)
        if (rows < MOST) return multiply_some<Source, MOST - 1>(stretch, row, rows);
    multiply_panels<Source, MOST>(stretch, row);
}

// All rows, in tiles of nearly equal height.
template <typename Source, int MOST>
TARGET static void multiply_rows(const Stretch &stretch, int64_t rows) {
    int64_t row = 0;
    for (int64_t left = (rows + MOST - 1) / MOST; left > 0; left--) {
        int64_t height = (rows - row + left - 1) / left;
        multiply_some<Source, MOST>(stretch, row, height);
        row += height;
    }
}

// Widen a stretch into `to`, [GROUP_PANELS, STRETCH_INPUTS, PANEL].
template <typename Source>
TARGET static void widen_stretch(const Stretch &stretch, float *to) {
    constexpr int STEP = Source::STEP;
    const int64_t bytes = stretch.eight_step * STEP / 8;
    for (int64_t panel = 0; panel < GROUP_PANELS; panel++, to += STRETCH_INPUTS * PANEL) {
        float *place = to;
        for (int64_t start = 0, block = 0; start < stretch.inputs; start += stretch.block, block++) {
            const char *levels = stretch.levels + panel * stretch.panel_step + block * stretch.block_step;
            int64_t count = smaller(stretch.block, stretch.inputs - start), k = 0;
            for (; k + STEP <= count; k += STEP, levels += bytes, place += STEP * PANEL)
                UNROLL for (int i = 0; i < STEP; i++)
                    UNROLL for (int j = 0; j < PANEL_LANES; j++)
                        store(place + i * PANEL + j * WIDTH, Source::level(levels, i, j));
            if constexpr (Source::RAGGED)
                for (int i = 0; k + i < count; i++)
                    for (int j = 0; j < PANEL_LANES; j++)
                        store(place + i * PANEL + j * WIDTH, Source::level(levels, i, j));
        }
    }
}

// The totals of a group, from its first block to its last.
template <typename Source>
TARGET static void multiply_group(Stretch stretch, int64_t rows, float *widened) {
    constexpr int MOST = Source::RAGGED ? MOST_ROWS : MOST_DIRECT_ROWS;
    if (rows <= MOST * DIRECT_TILES) return multiply_rows<Source, MOST>(stretch, rows);
    const int64_t inputs = stretch.inputs, blocks = STRETCH_INPUTS / stretch.block;
    for (int64_t start = 0; start < inputs; start += STRETCH_INPUTS) {
        stretch.inputs = smaller(STRETCH_INPUTS, inputs - start);
        Stretch part = stretch;
        if constexpr (!Source::WIDENED) {
            widen_stretch<Source>(stretch, widened);
            part.levels = (const char *)widened;
            part.eight_step = sizeof(float) * 8 * PANEL;
            part.block_step = sizeof(float) * stretch.block * PANEL;
            part.panel_step = sizeof(float) * STRETCH_INPUTS * PANEL;
        }
        multiply_rows<Singles, MOST_ROWS>(part, rows);
        stretch.levels += blocks * stretch.block_step;
        if (stretch.soon) stretch.soon += blocks * stretch.soon_block_step;
        if (stretch.scales) stretch.scales += blocks * stretch.scale_block_step;
        if (stretch.has_minimum) stretch.sums += blocks;
        stretch.x += STRETCH_INPUTS;
    }
}

TARGET static void start_totals(const Weights &weights, int64_t rows, int64_t panel, float *totals) {
    int64_t width = GROUP_PANELS * PANEL, known = smaller(weights.outputs - panel * PANEL, width);
    for (int64_t row = 0; row < rows; row++, totals += width) {
        int64_t from = weights.bias ? known : 0;
        if (from) memcpy(totals, weights.bias + panel * PANEL, sizeof(float) * known);
        memset(totals + from, 0, sizeof(float) * (width - from));
    }
}

TARGET static void write_totals(const float *totals, int64_t rows, int64_t count, float *y, int64_t y_stride,
                                bool add_to) {
    for (int64_t row = 0; row < rows; row++, y += y_stride, totals += GROUP_PANELS * PANEL) {
        int64_t i = 0;
        for (; i + WIDTH <= count; i += WIDTH) {
            Lanes total = load(totals + i);
            store(y + i, add_to ? add(load(y + i), total) : total);
        }
        for (; i < count; i++) y[i] = add_to ? y[i] + totals[i] : totals[i];
    }
}

// Sums of the blocks of each row, [rows, block_count(weights)], for multiply. Halves of a block are added to each
// other until one number is left.
TARGET static void block_sums(const Weights &weights, const float *x, int64_t rows, int64_t stride, float *sums) {
    int64_t blocks = block_count(weights), block = weights.block;
    for (int64_t row = 0; row < rows; row++, x += stride)
        for (int64_t i = 0; i < blocks; i++) {
            const float *from = x + i * block;
            float part[16];
            if (block == 32)
                for (int j = 0; j < 16; j++) part[j] = from[j] + from[j + 16];
            else
                memcpy(part, from, sizeof(part));
            for (int j = 0; j < 8; j++) part[j] += part[j + 8];
            for (int j = 0; j < 4; j++) part[j] += part[j + 4];
            *sums++ = (part[0] + part[2]) + (part[1] + part[3]);
        }
}

// y = x W^T + bias, or y += that, for the outputs of panels first .. last - 1, where first is a multiple of
// GROUP_PANELS. `sums` are from block_sums, and `scratch` has LINEAR_SCRATCH floats. Strides count elements.
TARGET static void multiply(const Weights &weights, const float *x, int64_t rows, int64_t stride, const float *sums,
                            float *y, int64_t y_stride, bool add_to, int64_t first, int64_t last, float *scratch) {
    void (*group)(Stretch, int64_t, float *) = multiply_group<Singles>;
    if (weights.format == Format::HALVES) group = multiply_group<Halves>;
    if (weights.format == Format::BRAINS) group = multiply_group<Brains>;
    if (weights.format == Format::NIBBLES) group = multiply_group<Nibbles>;
    if (weights.format == Format::BYTES) group = multiply_group<Bytes>;

    const int64_t bytes = panel_bytes(weights), panels = panel_count(weights), blocks = block_count(weights);
    Stretch stretch;
    stretch.block = block_length(weights);
    stretch.eight_step = eight_bytes(weights.format);
    stretch.panel_step = stretch.scale_panel_step = bytes;
    stretch.soon_panel_step = bytes;
    stretch.block_step = stretch.scale_block_step = stretch.soon_block_step =
        scale_bytes(weights) + stretch.eight_step * stretch.block / 8;
    stretch.has_minimum = blocks > 0;
    stretch.inputs = weights.inputs;
    stretch.x_stride = stride;
    stretch.sums_stride = blocks;
    stretch.totals = scratch;
    float *widened = scratch + PASS_ROWS * GROUP_PANELS * PANEL;
    for (int64_t panel = first; panel < last; panel += GROUP_PANELS) {
        int64_t count = smaller(GROUP_PANELS, last - panel);
        const char *data = (const char *)weights.data + panel * bytes;
        stretch.scales = has_scales(weights) ? data : nullptr;
        stretch.levels = data + scale_bytes(weights);
        // Floats follow each other so fast that the processor foresees them itself.
        bool foreseen = weights.format == Format::SINGLES || panel + GROUP_PANELS >= panels;
        stretch.soon = foreseen ? nullptr : stretch.levels + GROUP_PANELS * bytes;
        for (int64_t row = 0; row < rows; row += PASS_ROWS) {
            int64_t height = smaller(PASS_ROWS, rows - row);
            stretch.x = x + row * stride;
            stretch.sums = blocks ? sums + row * blocks : nullptr;
            start_totals(weights, height, panel, stretch.totals);
            group(stretch, height, widened);
            write_totals(stretch.totals, height, smaller(weights.outputs - panel * PANEL, count * PANEL),
                         y + row * y_stride + panel * PANEL, y_stride, add_to);
            stretch.soon = nullptr;
        }
    }
}
