// SwiGLU experts in the order of exact-v1, as far as WGSL promises an order. What a host binds and which entry points it calls
// is in docs/kernel.md, section "The WGSL kernel".
//
// A thread makes one output: it walks its matrix row block by block, with integer dot products inside a block, and adds the
// blocks' terms in ascending order. Words of 32 matrix rows lie side by side, so that neighbours read neighbours; row values are
// the same for a whole workgroup. With one row, four threads share an output and leave their terms for the first of them to add.

struct Job {
    weights: u32,
    weights_stride: u32,
    rows: u32,
    rows_stride: u32,
    out: u32,
    out_stride: u32,
    outputs: u32,
    columns: u32,
    count: u32,
    reserved_0: u32,
    reserved_1: u32,
    reserved_2: u32,
}

@group(0) @binding(0) var<uniform> jobs: array<Job, 64>;
@group(0) @binding(1) var<storage, read> weights: array<u32>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

// Blocks whose terms fit into workgroup memory; a longer row is walked by one thread alone.
const MAX_TERMS: u32 = 128u;
const SLICES: u32 = 4u;
const LOW_NIBBLES: vec4<u32> = vec4<u32>(0x0f0f0f0fu);
const QUIET_NAN: u32 = 0x7fc00000u;
const INFINITY: u32 = 0x7f800000u;

var<workgroup> terms: array<f32, 4096>;
var<workgroup> magnitudes: array<u32, 64>;
var<workgroup> word_sums: array<i32, 64>;

// ---- reading -----------------------------------------------------------------------------------------------------------------

// The first word of output `output`; its next words follow at a distance of 32.
fn row_start(job: Job, output: u32) -> u32 {
    return job.weights + (output >> 5u) * job.weights_stride * 32u + (output & 31u);
}

fn word(start: u32, index: u32) -> u32 {
    return weights[start + index * 32u];
}

fn four_words(start: u32, index: u32) -> vec4<u32> {
    let at = start + index * 32u;
    return vec4<u32>(weights[at], weights[at + 32u], weights[at + 64u], weights[at + 96u]);
}

fn row_word(index: u32) -> u32 {
    return rows[index >> 2u][index & 3u];
}

// binary16 in the low halves, exactly, subnormals kept. Infinities and NaN are refused when weights are loaded. The language's own
// unpack2x16float may flush subnormals, and not every device has it.
fn widen_four(halves: vec4<u32>) -> vec4<f32> {
    let magnitude = (halves & vec4<u32>(0x7fffu)) << vec4<u32>(13u);
    let subnormal = bitcast<vec4<u32>>(vec4<f32>(halves & vec4<u32>(0x3ffu)) * 0x1p-24f);
    let wide = select(magnitude + vec4<u32>(112u << 23u), subnormal, magnitude < vec4<u32>(1u << 23u));
    return bitcast<vec4<f32>>(((halves & vec4<u32>(0x8000u)) << vec4<u32>(16u)) | wide);
}

fn widen(half: u32) -> f32 {
    return widen_four(vec4<u32>(half)).x;
}

// The value itself, behind a zero that no compiler knows: it cannot join what comes before with what comes
// after, as drivers do that fuse a product with a sum or put terms in another order.
fn rounded(x: f32, zero: u32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) | zero);
}

fn rounded_four(x: vec4<f32>, zero: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) | vec4<u32>(zero));
}

fn dot_16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// Writes a product, or a NaN where a scale of the row says that it is no row of numbers.
fn write(at: u32, value: f32, worst_scale: u32) {
    out[at] = select(bitcast<u32>(value), QUIET_NAN, worst_scale >= INFINITY);
}

// ---- Q4_K: 36 words of 256 weights ---------------------------------------------------------------------------------------------

struct Q4K {
    scale: f32,
    minimum: f32,
    scales: vec2<u32>,
    minima: vec2<u32>,
}

fn q4_k_header(start: u32, block: u32) -> Q4K {
    let head = four_words(start, block * 36u);
    return Q4K(
        widen(head.x & 0xffffu),
        widen(head.x >> 16u),
        vec2<u32>(head.y & 0x3f3f3f3fu, (head.w & 0x0f0f0f0fu) | ((head.y >> 2u) & 0x30303030u)),
        vec2<u32>(head.z & 0x3f3f3f3fu, ((head.w >> 4u) & 0x0f0f0f0fu) | ((head.z >> 2u) & 0x30303030u)),
    );
}

// Sub-block integer j of eight.
fn q4_k_pick(packed: vec2<u32>, j: u32) -> i32 {
    return i32((select(packed.x, packed.y, j >= 4u) >> ((j & 3u) * 8u)) & 63u);
}

// sum sc_j * isum_j and sum mn_j * bsum_j of one block.
fn q4_k_sums(job: Job, head: Q4K, start: u32, row: u32, block: u32) -> vec2<i32> {
    var scaled = 0;
    var lowered = 0;
    let bsums = row + job.columns / 4u + block * 8u;
    for (var pair = 0u; pair < 4u; pair++) {
        let at = block * 36u + 4u + pair * 8u;
        let x = (row + block * 64u + pair * 16u) >> 2u;
        let low = four_words(start, at);
        let high = four_words(start, at + 4u);
        let even = dot_16(low & LOW_NIBBLES, rows[x]) + dot_16(high & LOW_NIBBLES, rows[x + 1u]);
        let odd = dot_16((low >> vec4<u32>(4u)) & LOW_NIBBLES, rows[x + 2u])
            + dot_16((high >> vec4<u32>(4u)) & LOW_NIBBLES, rows[x + 3u]);
        scaled += q4_k_pick(head.scales, pair * 2u) * even + q4_k_pick(head.scales, pair * 2u + 1u) * odd;
        lowered += q4_k_pick(head.minima, pair * 2u) * bitcast<i32>(row_word(bsums + pair * 2u))
            + q4_k_pick(head.minima, pair * 2u + 1u) * bitcast<i32>(row_word(bsums + pair * 2u + 1u));
    }
    return vec2<i32>(scaled, lowered);
}

fn q4_k_term(head: Q4K, row_scale: f32, sums: vec2<i32>, zero: u32) -> f32 {
    let scaled = rounded((head.scale * row_scale) * f32(sums.x), zero);
    return rounded(scaled - rounded((head.minimum * row_scale) * f32(sums.y), zero), zero);
}

@compute @workgroup_size(32, 4)
fn q4_k_one_row(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lane: vec3<u32>) {
    let job = jobs[group.z];
    let output = group.x * 32u + lane.x;
    let live = output < job.outputs && group.y < job.count;
    let blocks = job.columns / 256u;
    let slices = select(1u, SLICES, blocks <= MAX_TERMS);
    let start = row_start(job, output);
    let row = job.rows + group.y * job.rows_stride;
    let scales = row + job.columns / 4u + job.columns / 32u;
    var sum = 0.0;
    var worst = 0u;
    if live && lane.y < slices {
        for (var block = lane.y; block < blocks; block += slices) {
            let head = q4_k_header(start, block);
            let scale = row_word(scales + block);
            let term = q4_k_term(head, bitcast<f32>(scale), q4_k_sums(job, head, start, row, block), job.reserved_0);
            if slices == 1u {
                sum += term;
                worst = max(worst, scale);
            } else {
                terms[block * 32u + lane.x] = term;
            }
        }
    }
    workgroupBarrier();
    if live && lane.y == 0u {
        if slices != 1u {
            for (var block = 0u; block < blocks; block++) {
                sum += terms[block * 32u + lane.x];
                worst = max(worst, row_word(scales + block));
            }
        }
        write(job.out + group.y * job.out_stride + output, sum, worst);
    }
}

@compute @workgroup_size(64)
fn q4_k_many_rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = jobs[group.z];
    let output = group.x * 64u + lane;
    let first = group.y * 4u;
    if output >= job.outputs || first >= job.count {
        return;
    }
    let start = row_start(job, output);
    // Rows past the last are computed as the last and not written.
    let row = vec4<u32>(job.rows) + min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(job.count - 1u)) * job.rows_stride;
    let quads = row >> vec4<u32>(2u);
    let bsums = row + vec4<u32>(job.columns / 4u);
    let scales = bsums + vec4<u32>(job.columns / 32u);
    var sum = vec4<f32>();
    var worst = vec4<u32>();
    for (var block = 0u; block < job.columns / 256u; block++) {
        let head = q4_k_header(start, block);
        var scaled = vec4<i32>();
        var lowered = vec4<i32>();
        for (var pair = 0u; pair < 4u; pair++) {
            let at = block * 36u + 4u + pair * 8u;
            let low = four_words(start, at);
            let high = four_words(start, at + 4u);
            let q0 = low & LOW_NIBBLES;
            let q1 = high & LOW_NIBBLES;
            let q2 = (low >> vec4<u32>(4u)) & LOW_NIBBLES;
            let q3 = (high >> vec4<u32>(4u)) & LOW_NIBBLES;
            let x = quads + vec4<u32>(block * 16u + pair * 4u);
            let even = vec4<i32>(
                dot_16(q0, rows[x.x]) + dot_16(q1, rows[x.x + 1u]),
                dot_16(q0, rows[x.y]) + dot_16(q1, rows[x.y + 1u]),
                dot_16(q0, rows[x.z]) + dot_16(q1, rows[x.z + 1u]),
                dot_16(q0, rows[x.w]) + dot_16(q1, rows[x.w + 1u]),
            );
            let odd = vec4<i32>(
                dot_16(q2, rows[x.x + 2u]) + dot_16(q3, rows[x.x + 3u]),
                dot_16(q2, rows[x.y + 2u]) + dot_16(q3, rows[x.y + 3u]),
                dot_16(q2, rows[x.z + 2u]) + dot_16(q3, rows[x.z + 3u]),
                dot_16(q2, rows[x.w + 2u]) + dot_16(q3, rows[x.w + 3u]),
            );
            scaled += q4_k_pick(head.scales, pair * 2u) * even + q4_k_pick(head.scales, pair * 2u + 1u) * odd;
            let b = bsums + vec4<u32>(block * 8u + pair * 2u);
            lowered += q4_k_pick(head.minima, pair * 2u) * four_sums(b)
                + q4_k_pick(head.minima, pair * 2u + 1u) * four_sums(b + vec4<u32>(1u));
        }
        let scale = four_row_words(scales + vec4<u32>(block));
        worst = max(worst, scale);
        let d = bitcast<vec4<f32>>(scale);
        let up = rounded_four((head.scale * d) * vec4<f32>(scaled), job.reserved_0);
        let down = rounded_four((head.minimum * d) * vec4<f32>(lowered), job.reserved_0);
        sum += rounded_four(up - down, job.reserved_0);
    }
    write_four(job, first, output, sum, worst);
}

@compute @workgroup_size(64)
fn q4_k_accumulators(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = jobs[group.z];
    let output = group.x * 64u + lane;
    if output >= job.outputs || group.y >= job.count {
        return;
    }
    let start = row_start(job, output);
    let row = job.rows + group.y * job.rows_stride;
    let blocks = job.columns / 256u;
    for (var block = 0u; block < blocks; block++) {
        let sums = q4_k_sums(job, q4_k_header(start, block), start, row, block);
        let at = job.out + group.y * job.out_stride + (output * blocks + block) * 2u;
        out[at] = bitcast<u32>(sums.x);
        out[at + 1u] = bitcast<u32>(sums.y);
    }
}

fn four_row_words(at: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(row_word(at.x), row_word(at.y), row_word(at.z), row_word(at.w));
}

fn four_sums(at: vec4<u32>) -> vec4<i32> {
    return bitcast<vec4<i32>>(four_row_words(at));
}

fn write_four(job: Job, first: u32, output: u32, sum: vec4<f32>, worst: vec4<u32>) {
    let at = job.out + first * job.out_stride + output;
    write(at, sum.x, worst.x);
    if first + 1u < job.count {
        write(at + job.out_stride, sum.y, worst.y);
    }
    if first + 2u < job.count {
        write(at + 2u * job.out_stride, sum.z, worst.z);
    }
    if first + 3u < job.count {
        write(at + 3u * job.out_stride, sum.w, worst.w);
    }
}

// ---- Q8_0: 17 words of two blocks of 32 weights -----------------------------------------------------------------------------------

struct Q8Block {
    scale: f32,
    low: vec4<u32>,
    high: vec4<u32>,
}

// A block is 34 bytes, so that every other one begins in the middle of a word.
fn q8_0_block(start: u32, block: u32) -> Q8Block {
    let at = (block >> 1u) * 17u + (block & 1u) * 8u;
    let low = four_words(start, at);
    let high = four_words(start, at + 4u);
    let last = word(start, at + 8u);
    if (block & 1u) == 0u {
        return Q8Block(
            widen(low.x & 0xffffu),
            (low >> vec4<u32>(16u)) | (vec4<u32>(low.yzw, high.x) << vec4<u32>(16u)),
            (high >> vec4<u32>(16u)) | (vec4<u32>(high.yzw, last) << vec4<u32>(16u)),
        );
    }
    return Q8Block(widen(low.x >> 16u), vec4<u32>(low.yzw, high.x), vec4<u32>(high.yzw, last));
}

@compute @workgroup_size(32, 4)
fn q8_0_one_row(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lane: vec3<u32>) {
    let job = jobs[group.z];
    let output = group.x * 32u + lane.x;
    let live = output < job.outputs && group.y < job.count;
    let blocks = job.columns / 32u;
    let slices = select(1u, SLICES, blocks <= MAX_TERMS);
    let start = row_start(job, output);
    let row = job.rows + group.y * job.rows_stride;
    let scales = row + job.columns / 4u + blocks;
    var sum = 0.0;
    var worst = 0u;
    if live && lane.y < slices {
        for (var block = lane.y; block < blocks; block += slices) {
            let w = q8_0_block(start, block);
            let scale = row_word(scales + block);
            let x = (row >> 2u) + block * 2u;
            let isum = dot_16(w.low, rows[x]) + dot_16(w.high, rows[x + 1u]);
            let term = rounded((w.scale * bitcast<f32>(scale)) * f32(isum), job.reserved_0);
            if slices == 1u {
                sum += term;
                worst = max(worst, scale);
            } else {
                terms[block * 32u + lane.x] = term;
            }
        }
    }
    workgroupBarrier();
    if live && lane.y == 0u {
        if slices != 1u {
            for (var block = 0u; block < blocks; block++) {
                sum += terms[block * 32u + lane.x];
                worst = max(worst, row_word(scales + block));
            }
        }
        write(job.out + group.y * job.out_stride + output, sum, worst);
    }
}

@compute @workgroup_size(64)
fn q8_0_many_rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = jobs[group.z];
    let output = group.x * 64u + lane;
    let first = group.y * 4u;
    if output >= job.outputs || first >= job.count {
        return;
    }
    let start = row_start(job, output);
    let row = vec4<u32>(job.rows) + min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(job.count - 1u)) * job.rows_stride;
    let blocks = job.columns / 32u;
    let scales = row + vec4<u32>(job.columns / 4u + blocks);
    var sum = vec4<f32>();
    var worst = vec4<u32>();
    for (var block = 0u; block < blocks; block++) {
        let w = q8_0_block(start, block);
        let x = (row >> vec4<u32>(2u)) + vec4<u32>(block * 2u);
        let isum = vec4<i32>(
            dot_16(w.low, rows[x.x]) + dot_16(w.high, rows[x.x + 1u]),
            dot_16(w.low, rows[x.y]) + dot_16(w.high, rows[x.y + 1u]),
            dot_16(w.low, rows[x.z]) + dot_16(w.high, rows[x.z + 1u]),
            dot_16(w.low, rows[x.w]) + dot_16(w.high, rows[x.w + 1u]),
        );
        let scale = four_row_words(scales + vec4<u32>(block));
        worst = max(worst, scale);
        sum += rounded_four((w.scale * bitcast<vec4<f32>>(scale)) * vec4<f32>(isum), job.reserved_0);
    }
    write_four(job, first, output, sum, worst);
}

@compute @workgroup_size(64)
fn q8_0_accumulators(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = jobs[group.z];
    let output = group.x * 64u + lane;
    if output >= job.outputs || group.y >= job.count {
        return;
    }
    let start = row_start(job, output);
    let row = job.rows + group.y * job.rows_stride;
    let blocks = job.columns / 32u;
    for (var block = 0u; block < blocks; block++) {
        let w = q8_0_block(start, block);
        let x = (row >> 2u) + block * 2u;
        let isum = dot_16(w.low, rows[x]) + dot_16(w.high, rows[x + 1u]);
        out[job.out + group.y * job.out_stride + output * blocks + block] = bitcast<u32>(isum);
    }
}

// ---- F16: eight words of sixteen weights, one for each partial sum of a sixteen-sum ------------------------------------------------

fn f16_four(start: u32, index: u32) -> vec4<f32> {
    let low = word(start, index);
    let high = word(start, index + 1u);
    return widen_four(vec4<u32>(low & 0xffffu, low >> 16u, high & 0xffffu, high >> 16u));
}

fn fold(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> f32 {
    let eight_low = a + c;
    let eight_high = b + d;
    let four = eight_low + eight_high;
    let two = four.xy + four.zw;
    return two.x + two.y;
}

fn f32_faults(job: Job, row: u32) -> u32 {
    let padded = (job.columns + 15u) / 16u * 16u;
    var worst = 0u;
    for (var part = 0u; part < (job.columns + 255u) / 256u; part++) {
        worst = max(worst, row_word(row + padded + part));
    }
    return worst;
}

@compute @workgroup_size(32, 4)
fn f16_one_row(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lane: vec3<u32>) {
    let job = jobs[group.z];
    let output = group.x * 32u + lane.x;
    let live = output < job.outputs && group.y < job.count;
    let start = row_start(job, output);
    let row = job.rows + group.y * job.rows_stride;
    var partial = vec4<f32>();
    if live {
        for (var group_of_16 = 0u; group_of_16 < (job.columns + 15u) / 16u; group_of_16++) {
            let x = bitcast<vec4<f32>>(rows[(row >> 2u) + group_of_16 * 4u + lane.y]);
            partial += f16_four(start, group_of_16 * 8u + lane.y * 2u) * x;
        }
    }
    let mine = (lane.y * 32u + lane.x) * 4u;
    terms[mine] = partial.x;
    terms[mine + 1u] = partial.y;
    terms[mine + 2u] = partial.z;
    terms[mine + 3u] = partial.w;
    workgroupBarrier();
    if live && lane.y == 0u {
        let sum = fold(partial, four_terms(mine + 128u), four_terms(mine + 256u), four_terms(mine + 384u));
        write(job.out + group.y * job.out_stride + output, sum, f32_faults(job, row));
    }
}

fn four_terms(at: u32) -> vec4<f32> {
    return vec4<f32>(terms[at], terms[at + 1u], terms[at + 2u], terms[at + 3u]);
}

@compute @workgroup_size(64)
fn f16_many_rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = jobs[group.z];
    let output = group.x * 64u + lane;
    let first = group.y * 4u;
    if output >= job.outputs || first >= job.count {
        return;
    }
    let start = row_start(job, output);
    let row = vec4<u32>(job.rows) + min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(job.count - 1u)) * job.rows_stride;
    var a: mat4x4<f32>;
    var b: mat4x4<f32>;
    var c: mat4x4<f32>;
    var d: mat4x4<f32>;
    for (var group_of_16 = 0u; group_of_16 < (job.columns + 15u) / 16u; group_of_16++) {
        let w0 = f16_four(start, group_of_16 * 8u);
        let w1 = f16_four(start, group_of_16 * 8u + 2u);
        let w2 = f16_four(start, group_of_16 * 8u + 4u);
        let w3 = f16_four(start, group_of_16 * 8u + 6u);
        let x = (row >> vec4<u32>(2u)) + vec4<u32>(group_of_16 * 4u);
        a[0] += w0 * bitcast<vec4<f32>>(rows[x.x]);
        a[1] += w1 * bitcast<vec4<f32>>(rows[x.x + 1u]);
        a[2] += w2 * bitcast<vec4<f32>>(rows[x.x + 2u]);
        a[3] += w3 * bitcast<vec4<f32>>(rows[x.x + 3u]);
        b[0] += w0 * bitcast<vec4<f32>>(rows[x.y]);
        b[1] += w1 * bitcast<vec4<f32>>(rows[x.y + 1u]);
        b[2] += w2 * bitcast<vec4<f32>>(rows[x.y + 2u]);
        b[3] += w3 * bitcast<vec4<f32>>(rows[x.y + 3u]);
        c[0] += w0 * bitcast<vec4<f32>>(rows[x.z]);
        c[1] += w1 * bitcast<vec4<f32>>(rows[x.z + 1u]);
        c[2] += w2 * bitcast<vec4<f32>>(rows[x.z + 2u]);
        c[3] += w3 * bitcast<vec4<f32>>(rows[x.z + 3u]);
        d[0] += w0 * bitcast<vec4<f32>>(rows[x.w]);
        d[1] += w1 * bitcast<vec4<f32>>(rows[x.w + 1u]);
        d[2] += w2 * bitcast<vec4<f32>>(rows[x.w + 2u]);
        d[3] += w3 * bitcast<vec4<f32>>(rows[x.w + 3u]);
    }
    let sum = vec4<f32>(
        fold(a[0], a[1], a[2], a[3]),
        fold(b[0], b[1], b[2], b[3]),
        fold(c[0], c[1], c[2], c[3]),
        fold(d[0], d[1], d[2], d[3]),
    );
    let worst = vec4<u32>(f32_faults(job, row.x), f32_faults(job, row.y), f32_faults(job, row.z), f32_faults(job, row.w));
    write_four(job, first, output, sum, worst);
}

// ---- h = silu(g) * u, as a row of the next product -----------------------------------------------------------------------------

// The quotient rounded correctly, from one that is nearly so: the remainder is exact in products of half as many bits.
fn divide(a: f32, b: f32) -> f32 {
    let q = a / b;
    let q_high = bitcast<f32>(bitcast<u32>(q) & 0xfffff000u);
    let q_low = q - q_high;
    let b_high = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
    let b_low = b - b_high;
    let remainder = (((a - q_high * b_high) - q_high * b_low) - q_low * b_high) - q_low * b_low;
    return q + remainder / b;
}

fn exponential(x: f32, zero: u32) -> f32 {
    // Clamped in integers to -87.3..88: non-negative floats order as signed integers, negative ones as unsigned ones in reverse.
    let clamped = bitcast<f32>(min(bitcast<u32>(min(bitcast<i32>(x), 0x42b00000)), 0xc2ae999au));
    let n = round(clamped * 1.44269504);
    let r = rounded(rounded(clamped - n * 0.693359375, zero) - n * -2.12194440e-4, zero);
    var p = 1.9875691500e-4;
    p = rounded(p * r, zero) + 1.3981999507e-3;
    p = rounded(p * r, zero) + 8.3334519073e-3;
    p = rounded(p * r, zero) + 4.1665795894e-2;
    p = rounded(p * r, zero) + 1.6666665459e-1;
    p = rounded(p * r, zero) + 5.0000001201e-1;
    let sum = rounded(rounded(p * rounded(r * r, zero), zero) + r, zero) + 1.0;
    return rounded(sum, zero) * bitcast<f32>((i32(n) + 127) << 23u);
}

// Four values of h from position `first`; zero past the end. g lies in binding 1, u in binding 2.
fn hidden_values(job: Job, row: u32, first: u32) -> vec4<f32> {
    var h = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if first + i < job.columns && row < job.count {
            let g = bitcast<f32>(weights[job.weights + row * job.weights_stride + first + i]);
            let u = bitcast<f32>(row_word(job.rows + row * job.rows_stride + first + i));
            h[i] = divide(g, 1.0 + exponential(-g, job.reserved_0)) * u;
        }
    }
    return h;
}

fn largest_magnitude(h: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(h) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// A workgroup quantises 256 values in blocks of `lanes` threads of four values each.
fn quantise(group: vec3<u32>, lane: u32, lanes: u32) {
    let job = jobs[group.z];
    let first = group.x * 256u + lane * 4u;
    let h = hidden_values(job, group.y, first);
    magnitudes[lane] = largest_magnitude(h);
    workgroupBarrier();
    let block_start = lane / lanes * lanes;
    var largest = 0u;
    for (var i = 0u; i < lanes; i++) {
        largest = max(largest, magnitudes[block_start + i]);
    }
    let amax = bitcast<f32>(largest);
    var scale = 0u;
    var packed = 0u;
    if largest >= INFINITY {
        scale = QUIET_NAN;
    } else if amax >= 1e-30 {
        scale = bitcast<u32>(divide(amax, 127.0));
        let q = bitcast<vec4<u32>>(vec4<i32>(round(h * divide(127.0, amax)))) & vec4<u32>(255u);
        packed = q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
    }
    word_sums[lane] = dot4I8Packed(packed, 0x01010101u);
    workgroupBarrier();
    if first < job.columns && group.y < job.count {
        let row = job.out + group.y * job.out_stride;
        out[row + first / 4u] = packed;
        if lane % 8u == 0u {
            var sum = 0;
            for (var i = 0u; i < 8u; i++) {
                sum += word_sums[lane + i];
            }
            out[row + job.columns / 4u + first / 32u] = bitcast<u32>(sum);
        }
        if lane % lanes == 0u {
            out[row + job.columns / 4u + job.columns / 32u + first / (lanes * 4u)] = scale;
        }
    }
}

@compute @workgroup_size(64)
fn step_q8k(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    quantise(group, lane, 64u);
}

@compute @workgroup_size(64)
fn step_q8(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    quantise(group, lane, 8u);
}

@compute @workgroup_size(64)
fn step_f32(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = jobs[group.z];
    let first = group.x * 256u + lane * 4u;
    let padded = (job.columns + 15u) / 16u * 16u;
    let h = hidden_values(job, group.y, first);
    magnitudes[lane] = largest_magnitude(h);
    workgroupBarrier();
    if group.y < job.count {
        let row = job.out + group.y * job.out_stride;
        for (var i = 0u; i < 4u; i++) {
            if first + i < padded {
                out[row + first + i] = bitcast<u32>(h[i]);
            }
        }
        if lane == 0u {
            var largest = 0u;
            for (var i = 0u; i < 64u; i++) {
                largest = max(largest, magnitudes[i]);
            }
            out[row + padded + group.x] = select(0u, QUIET_NAN, largest >= INFINITY);
        }
    }
}
