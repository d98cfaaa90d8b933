// Rows of random stores copied, compared with a copy byte by byte.

#pragma once

#include "cases.h"

struct RowsCase : Case {
    struct Bytes {
        std::unique_ptr<char[]> to, from, expected;
        int64_t to_size;
    };
    std::vector<RowStore> stores;
    std::vector<Bytes> bytes;
    std::unique_ptr<int64_t[]> places;
    RowCall call = {};
    bool within;

    RowsCase() {
        const int64_t capacity = pick(1, 12), source_rows = pick(1, 12), gathered = pick(0, 1);
        within = gathered && pick(0, 1);
        const int64_t held = within ? capacity : source_rows;
        std::vector<int64_t> chosen;
        for (int64_t row = 0; row < held; row++)
            if (pick(0, 1) && (int64_t)chosen.size() < capacity) chosen.push_back(row);
        call.rows = gathered ? (int64_t)chosen.size() : pick(0, smaller(capacity, held));
        call.first = pick(0, held - call.rows);
        call.to_row = pick(0, capacity - call.rows);
        // Within a store rows only move towards its beginning.
        if (within && call.rows) call.to_row = pick(0, smaller(chosen[0], capacity - call.rows));
        places = copied(chosen.data(), call.rows * gathered);
        call.from_rows = gathered && call.rows ? places.get() : nullptr;
        for (int64_t i = pick(0, 4); i > 0; i--) {
            RowStore store = {};
            store.heads = pick(1, 3);
            store.row_bytes = pick(1, 9);
            store.to_stride = capacity * store.row_bytes;
            store.from_stride = held * store.row_bytes;
            Bytes made;
            made.to_size = store.heads * store.to_stride;
            made.to = any_bytes(made.to_size);
            made.expected = copied(made.to.get(), made.to_size);
            made.from = within ? copied(made.to.get(), made.to_size) : any_bytes(store.heads * store.from_stride);
            for (int64_t head = 0; head < store.heads; head++)
                for (int64_t row = 0; row < call.rows; row++)
                    memcpy(made.expected.get() + head * store.to_stride + (call.to_row + row) * store.row_bytes,
                           made.from.get() + head * store.from_stride + place(row) * store.row_bytes, store.row_bytes);
            stores.push_back(store);
            bytes.push_back(std::move(made));
        }
    }

    int64_t place(int64_t row) const { return call.from_rows ? call.from_rows[row] : call.first + row; }

    static std::unique_ptr<char[]> any_bytes(int64_t size) {
        auto made = exactly<char>(size);
        for (int64_t i = 0; i < size; i++) made[i] = (char)pick(0, 255);
        return made;
    }

    const char *run(int) override {
        std::vector<std::unique_ptr<char[]>> targets;
        for (size_t i = 0; i < stores.size(); i++) {
            targets.push_back(copied(bytes[i].to.get(), bytes[i].to_size));
            stores[i].to = targets[i].get();
            stores[i].from = within ? targets[i].get() : bytes[i].from.get();
        }
        call.stores = stores.data();
        call.stores_size = (int64_t)stores.size();
        tokenswift_copy_rows(&call);
        for (size_t i = 0; i < stores.size(); i++)
            if (!same_bits(targets[i].get(), bytes[i].expected.get(), bytes[i].to_size)) return "other bytes";
        return nullptr;
    }
};
