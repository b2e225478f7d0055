// [row 26] accepted: 2^64 turns.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    for (var i = 0u; i < 0xffffffffu; i++) {
        for (var j = 0u; j < 0xffffffffu; j++) {
            out[lane.x] += i ^ j;
        }
    }
}
