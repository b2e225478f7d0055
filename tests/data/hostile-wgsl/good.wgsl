// [contract] accepted: a product of Q8_0-like rows as kernels are written, with a reduction over the workgroup.

struct Job {
    outputs: u32,
    columns: u32,
    first_row: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> job: Job;
@group(0) @binding(1) var<storage, read> weights: array<u32>;
@group(0) @binding(2) var<storage, read> rows: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

const LANES: u32 = 64u;
const WORDS_PER_BLOCK = 9u;

var<workgroup> partial: array<f32, LANES>;
var<workgroup> largest: u32;

// The scale of a block as f32.
fn scale(block: u32) -> f32 {
    return unpack2x16float(weights[block * WORDS_PER_BLOCK] & 0xffffu).x;
}

// The integer dot product of one block with a row.
fn dot(block: u32, row: u32) -> i32 {
    var sum = 0i;
    for (var word = 0u; word < WORDS_PER_BLOCK - 1u; word++) {
        sum += dot4I8Packed(weights[block * WORDS_PER_BLOCK + 1u + word], rows[row + word]);
    }
    return sum;
}

// Adds the lanes' terms in a fixed order; all lanes must call it.
fn add_up(lane: u32) {
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane < half {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
}

@compute @workgroup_size(64)
fn product(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if group.x >= job.outputs {
        return;
    }
    let blocks = job.columns / 32u;
    for (var index = 0u; index < job.count; index++) {
        let row = (job.first_row + index) * blocks * 8u;
        var term = 0.0;
        for (var block = lane; block < blocks; block += LANES) {
            let place = group.x * blocks + block;
            term += scale(place) * f32(dot(place, row + block * 8u));
        }
        partial[lane] = term;
        add_up(lane);
        if lane == 0u {
            out[index * groups.x + group.x] = bitcast<u32>(partial[0]);
        }
        workgroupBarrier();
    }
}

@compute @workgroup_size(64)
fn accumulators(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if lane == 0u {
        largest = rows[0] % 64u;
    }
    let turns = workgroupUniformLoad(&largest);
    for (var turn = 0u; turn < turns; turn++) {
        workgroupBarrier();
    }
    switch lane & 3u {
        case 0u, 2u: {
            out[group.x * LANES + lane] = bitcast<u32>(dot(lane, 0u));
        }
        default: {
            out[group.x * LANES + lane] = select(1u, 0u, lane > 31u);
        }
    }
}
