// exact-v1, the arithmetic whose bits every machine agrees on, for five weight formats (GGUF's block layouts).
//
// Three rules make the bits: multiply and add are rounded apart, nothing is fused (-ffp-contract=off); integer sums inside a
// block are exact, so their order is free; float sums keep the order written here. Reordering a float sum is what breaks a kernel.
#include "kernel.h"

// Numbers of the contract's enumeration.
enum { F32 = 0, F16 = 1, Q8_0 = 7, Q4_K = 10, Q6_K = 12 };

uint32_t block_length(uint32_t format) {
    switch (format) {
    case F32: case F16: return 1;
    case Q8_0: return 32;
    case Q4_K: case Q6_K: return 256;
    default: return 0;
    }
}

uint32_t block_bytes(uint32_t format) {
    switch (format) {
    case F32: return 4;
    case F16: return 2;
    case Q8_0: return 34;
    case Q4_K: return 144;
    default: return 210;
    }
}

uint32_t row_block(uint32_t format) {
    return block_length(format);
}

size_t row_bytes(uint32_t block, uint32_t values) {
    return block == 1 ? 4 * (size_t)values : (size_t)(values / block) * (4 + block);
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

static float of_bits(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

static float f32_at(const uint8_t *bytes) {
    float value;
    __builtin_memcpy(&value, bytes, 4);
    return value;
}

static bool is_finite(float value) {
    return (bits_of(value) & 0x7f800000) != 0x7f800000;
}

// binary16 widened: exact, so any way to do it gives the same bits.
static float f16_at(const uint8_t *bytes) {
    uint32_t half = bytes[0] | (uint32_t)bytes[1] << 8;
    uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t magnitude;
    if (exponent == 0) magnitude = bits_of((float)mantissa * of_bits(0x33800000)); // subnormal: mantissa * 2^-24
    else if (exponent == 31) magnitude = 0x7f800000 | mantissa << 13;
    else magnitude = (exponent + 112) << 23 | mantissa << 13;
    return of_bits(sign | magnitude);
}

bool are_finite(const float *values, size_t count) {
    bool finite = true;
    for (size_t i = 0; i < count; i++) finite &= is_finite(values[i]);
    return finite;
}

static bool holds_128(const uint8_t *values, uint32_t count) {
    bool found = false;
    for (uint32_t i = 0; i < count; i++) found |= values[i] == 0x80;
    return found;
}

// No NaN or infinity, no Q8_0 weight of -128.
bool are_weights(uint32_t format, const uint8_t *bytes, size_t length) {
    uint32_t block = block_bytes(format);
    for (const uint8_t *end = bytes + length; bytes < end; bytes += block) {
        bool good;
        switch (format) {
        case F32: good = is_finite(f32_at(bytes)); break;
        case F16: good = is_finite(f16_at(bytes)); break;
        case Q8_0: good = is_finite(f16_at(bytes)) && !holds_128(bytes + 2, 32); break;
        case Q4_K: good = is_finite(f16_at(bytes)) && is_finite(f16_at(bytes + 2)); break;
        default: good = is_finite(f16_at(bytes + 208));
        }
        if (!good) return false;
    }
    return true;
}

// Scales finite and their sign bit clear, no value of -128.
bool are_rows(uint32_t block, const uint8_t *bytes, size_t length) {
    uint32_t step = block == 1 ? 4 : 4 + block;
    for (const uint8_t *end = bytes + length; bytes < end; bytes += step) {
        float scale = f32_at(bytes);
        if (!is_finite(scale)) return false;
        if (block > 1 && (bits_of(scale) >> 31 || holds_128(bytes + 4, block))) return false;
    }
    return true;
}

// (d * dx) * sum q x: f16 d, 32 x i8.
static float q8_0_term(const uint8_t *block, const uint8_t *row) {
    const int8_t *q = (const int8_t *)block + 2, *x = (const int8_t *)row + 4;
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) sum += q[i] * x[i];
    return (f16_at(block) * f32_at(row)) * (float)sum;
}

// (d * dx) * sum sc q x - (dmin * dx) * sum mn x: f16 d and dmin, eight 6-bit scales and minima in 12 bytes, then four times 32
// bytes whose low nibbles are 32 weights and whose high nibbles are the next 32.
static float q4_k_term(const uint8_t *block, const uint8_t *row) {
    const uint8_t *packed = block + 4;
    int32_t scaled = 0, lowered = 0;
    for (int j = 0; j < 8; j++) {
        int scale, minimum;
        if (j < 4) {
            scale = packed[j] & 63;
            minimum = packed[j + 4] & 63;
        } else {
            scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
            minimum = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
        }
        const uint8_t *nibbles = block + 16 + j / 2 * 32;
        const int8_t *x = (const int8_t *)row + 4 + 32 * j;
        int shift = j % 2 * 4;
        int32_t product = 0, sum = 0;
        for (int i = 0; i < 32; i++) {
            product += (nibbles[i] >> shift & 15) * x[i];
            sum += x[i];
        }
        scaled += scale * product;
        lowered += minimum * sum;
    }
    float dx = f32_at(row);
    return (f16_at(block) * dx) * (float)scaled - (f16_at(block + 2) * dx) * (float)lowered;
}

// (d * dx) * sum sc (q - 32) x: 128 bytes of low nibbles, 64 of upper pairs of bits, sixteen i8 scales, f16 d. Each half of the
// block holds four times 32 weights.
static float q6_k_term(const uint8_t *block, const uint8_t *row) {
    int32_t scaled = 0;
    for (int j = 0; j < 16; j++) {
        int half = j / 8, quarter = j % 8 / 2, from = j % 2 * 16;
        const uint8_t *low = block + half * 64 + quarter % 2 * 32 + from, *high = block + 128 + half * 32 + from;
        const int8_t *x = (const int8_t *)row + 4 + 16 * j;
        int32_t product = 0;
        for (int i = 0; i < 16; i++) {
            int q = (low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (quarter * 2) & 3) << 4;
            product += (q - 32) * x[i];
        }
        scaled += (int8_t)block[192 + j] * product;
    }
    return (f16_at(block + 208) * f32_at(row)) * (float)scaled;
}

// The order in which products of floats are added: sixteen partial sums, element i into number i mod 16, then halved.
static float sixteen_sum(uint32_t format, uint32_t columns, const uint8_t *weights, const uint8_t *row) {
    float partial[16] = {0};
    for (uint32_t i = 0; i < columns; i++) {
        float w = format == F32 ? f32_at(weights + 4 * (size_t)i) : f16_at(weights + 2 * (size_t)i);
        partial[i % 16] += w * f32_at(row + 4 * (size_t)i);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) partial[lane] += partial[lane + half];
    return partial[0];
}

float dot(uint32_t format, uint32_t columns, const uint8_t *weights, const uint8_t *row) {
    if (row_block(format) == 1) return sixteen_sum(format, columns, weights, row);
    uint32_t blocks = columns / block_length(format);
    float sum = 0; // the blocks' terms, from +0 in ascending order
    switch (format) {
    case Q8_0:
        for (uint32_t b = 0; b < blocks; b++) sum += q8_0_term(weights + 34 * (size_t)b, row + 36 * (size_t)b);
        break;
    case Q4_K:
        for (uint32_t b = 0; b < blocks; b++) sum += q4_k_term(weights + 144 * (size_t)b, row + 260 * (size_t)b);
        break;
    default:
        for (uint32_t b = 0; b < blocks; b++) sum += q6_k_term(weights + 210 * (size_t)b, row + 260 * (size_t)b);
    }
    return sum;
}

// Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
static const float ROUNDER = 12582912.0f;

void quantise(const float *values, uint32_t count, uint32_t block, uint8_t *row) {
    if (block == 1) {
        __builtin_memcpy(row, values, 4 * (size_t)count);
        return;
    }
    for (uint32_t start = 0; start < count; start += block, row += 4 + block) {
        float largest = 0;
        for (uint32_t i = 0; i < block; i++) {
            float magnitude = of_bits(bits_of(values[start + i]) & 0x7fffffff);
            if (magnitude > largest) largest = magnitude;
        }
        bool zero = largest < 1e-30f;
        float scale = zero ? 0 : largest / 127.0f, factor = zero ? 0 : 127.0f / largest;
        __builtin_memcpy(row, &scale, 4);
        for (uint32_t i = 0; i < block; i++) row[4 + i] = (uint8_t)bits_of(values[start + i] * factor + ROUNDER);
    }
}

// e^x by a polynomial, x clamped to -87.3..=88. A library's `expf` would give other bits on other machines.
static float exponential(float x) {
    if (x != x) return x;
    x = x < -87.3f ? -87.3f : x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + ROUNDER;
    float n = shifted - ROUNDER;
    float r = (x - n * 0.693359375f) - n * -2.1219444e-4f;
    float p = 1.98756915e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    // n stands in the low bits of `shifted`; n + 127 is the exponent of 2^n.
    float power = of_bits((bits_of(shifted) + 127) << 23);
    return (((p * (r * r)) + r) + 1.0f) * power;
}

// x / (1 + e^-x).
float silu(float x) {
    return x / (1.0f + exponential(-x));
}
