// What the three files share: contract.c (calling convention and memory), kernel.c (experts), exact.c (arithmetic).
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// contract.c

// Why there is no answer, in the contract's order.
typedef enum { UNSUPPORTED, MALFORMED_WEIGHTS, MALFORMED_ROWS, NOT_FINITE, NO_FAULT } Fault;

// The contract's `matrix`; `format` counts the contract's enumeration.
typedef struct {
    uint32_t format, rows, columns;
} Shape;

// Memory that `release` takes back; traps where there is none left.
void *reserve(size_t bytes);
void release(void *memory);

// kernel.c

typedef struct {
    uint32_t format, rows, columns;
    const uint8_t *bytes;
} Matrix;

// Gate and up are width x hidden, down is hidden x width.
typedef struct {
    Matrix gate, up, down;
} Expert;

// Takes an expert and its bytes, or says why not; `text` then tells people what UNSUPPORTED means.
Fault expert_load(Expert *expert, const Shape shapes[3], uint8_t *const bytes[3], const size_t lengths[3], const char **text);
// `count` rows -> count x hidden values in `out`, which `release` takes.
Fault expert_forward(const Expert *expert, const uint8_t *rows, size_t length, uint32_t count, float **out, size_t *out_count);

// exact.c

// Values and bytes of a weight block; 0 values where there is no arithmetic for the format.
uint32_t block_length(uint32_t format);
uint32_t block_bytes(uint32_t format);
// Values of a block of the rows that matrices of this format are multiplied with: 1 means f32 rows.
uint32_t row_block(uint32_t format);
// Bytes of a row of `values` values, in blocks of `block`: f32 scale, then i8.
size_t row_bytes(uint32_t block, uint32_t values);

// Whether a quantiser could have written these bytes.
bool are_weights(uint32_t format, const uint8_t *bytes, size_t length);
bool are_rows(uint32_t block, const uint8_t *bytes, size_t length);
bool are_finite(const float *values, size_t count);

// One matrix row of `columns` weights times one row.
float dot(uint32_t format, uint32_t columns, const uint8_t *weights, const uint8_t *row);
float silu(float x);
// Finite values as a row.
void quantise(const float *values, uint32_t count, uint32_t block, uint8_t *row);
