// The kernel `{{name}}`: SwiGLU experts in exact-v1.
//
// A host loads an expert's three matrices once, then sends rows through it:
// g = G x; u = U x; h = silu(g) * u; y = D quantise(h). The arithmetic is in exact.c, the calling convention of the component in
// contract.c. Change what you like: `kvasir plugin test` says whether the bits are still the right ones.
#include "kernel.h"

// Largest number of rows or columns of a matrix: f32 holds every count up to here exactly.
#define MAX_DIMENSION (1u << 24)

static size_t weight_row_bytes(const Matrix *m) {
    return (size_t)(m->columns / block_length(m->format)) * block_bytes(m->format);
}

static float output(const Matrix *m, uint32_t o, const uint8_t *row) {
    return dot(m->format, m->columns, m->bytes + o * weight_row_bytes(m), row);
}

Fault expert_load(Expert *expert, const Shape shapes[3], uint8_t *const bytes[3], const size_t lengths[3], const char **text) {
    const Shape *gate = &shapes[0], *up = &shapes[1], *down = &shapes[2];
    Matrix *matrices[3] = {&expert->gate, &expert->up, &expert->down};
    if (gate->rows != up->rows || gate->columns != up->columns || gate->rows != down->columns || gate->columns != down->rows) {
        *text = "gate and up must be width x hidden, down hidden x width";
        return UNSUPPORTED;
    }
    for (int i = 0; i < 3; i++) {
        const Shape *shape = &shapes[i];
        uint32_t length = block_length(shape->format);
        if (length == 0) {
            *text = "this kernel has F32, F16, Q8_0, Q4_K and Q6_K";
            return UNSUPPORTED;
        }
        if (shape->rows < 1 || shape->rows > MAX_DIMENSION || shape->columns < 1 || shape->columns > MAX_DIMENSION) {
            *text = "a matrix has 1 to 2^24 rows and columns";
            return UNSUPPORTED;
        }
        if (shape->columns % length != 0) {
            *text = "the columns are no whole number of the format's blocks";
            return UNSUPPORTED;
        }
        *matrices[i] = (Matrix){shape->format, shape->rows, shape->columns, bytes[i]};
    }
    if (row_block(gate->format) != row_block(up->format)) {
        *text = "gate and up need rows of different formats";
        return UNSUPPORTED;
    }
    for (int i = 0; i < 3; i++) {
        // 64 bits: the product may be more than this machine can address.
        uint64_t expected = (uint64_t)weight_row_bytes(matrices[i]) * matrices[i]->rows;
        if (expected != lengths[i] || !are_weights(shapes[i].format, bytes[i], lengths[i])) return MALFORMED_WEIGHTS;
    }
    return NO_FAULT;
}

Fault expert_forward(const Expert *expert, const uint8_t *rows, size_t length, uint32_t count, float **out, size_t *out_count) {
    uint32_t hidden = expert->down.rows, width = expert->gate.rows;
    uint32_t block = row_block(expert->gate.format), h_block = row_block(expert->down.format);
    size_t bytes = row_bytes(block, hidden);
    if ((uint64_t)bytes * count != length || !are_rows(block, rows, length)) return MALFORMED_ROWS;

    uint64_t values = (uint64_t)hidden * count;
    if (values > SIZE_MAX / sizeof(float)) __builtin_trap();
    *out_count = values;
    *out = reserve(*out_count * sizeof(float));
    float *h = reserve(width * sizeof(float));
    uint8_t *h_row = reserve(row_bytes(h_block, width));
    bool finite = true;
    for (uint32_t r = 0; finite && r < count; r++) {
        const uint8_t *row = rows + r * bytes;
        for (uint32_t o = 0; o < width; o++) h[o] = silu(output(&expert->gate, o, row)) * output(&expert->up, o, row);
        finite = are_finite(h, width);
        if (!finite) break;
        quantise(h, width, h_block, h_row);
        float *result = *out + (size_t)r * hidden;
        for (uint32_t o = 0; o < hidden; o++) result[o] = output(&expert->down, o, h_row);
        finite = are_finite(result, hidden);
    }
    release(h_row);
    release(h);
    if (!finite) release(*out);
    return finite ? NO_FAULT : NOT_FINITE;
}
