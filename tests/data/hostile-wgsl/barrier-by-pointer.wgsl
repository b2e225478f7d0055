// [row 29] refused barrier: a function wrote the variable through a pointer.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn fill(pointer: ptr<function, u32>, value: u32) {
    *pointer = value;
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    var turns = 0u;
    fill(&turns, lane.x);
    for (var i = 0u; i < turns; i++) {
        workgroupBarrier();
    }
}
