// [row 29] refused barrier: the array is written at an index that differs.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    var turns: array<u32, 4>;
    turns[lane.x & 3u] = 2u;
    for (var i = 0u; i < turns[0]; i++) {
        workgroupBarrier();
    }
}
