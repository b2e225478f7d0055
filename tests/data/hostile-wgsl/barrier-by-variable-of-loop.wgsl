// [row 29] refused barrier: the variable differs only from the second turn on.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    var last = 0u;
    for (var i = 0u; i < 4u; i++) {
        if last > 0u {
            workgroupBarrier();
        }
        last = lane.x;
    }
}
