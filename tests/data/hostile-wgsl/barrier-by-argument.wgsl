// [row 29] refused barrier: the condition is an argument.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn helper(enter: bool) {
    if enter {
        workgroupBarrier();
    }
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    helper(lane.x < 2u);
}
