// [row 25] refused not-allowed: naga 30 panics when it writes SPIR-V for a pointer to a part of an array as an argument.

fn inner(pointer: ptr<function, i32>) {
}

fn outer(pointer: ptr<function, array<array<array<i32, 4>, 4>, 4>>, i: u32, j: u32) {
    inner((&(*pointer)[i][0][j]));
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    var values: array<array<array<i32, 4>, 4>, 4>;
    outer(&values, lane.x, lane.y);
}
