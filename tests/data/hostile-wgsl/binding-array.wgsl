// [contract] refused syntax: indices of binding arrays are not checked at run time.

@group(0) @binding(1) var<storage, read> many: binding_array<array<u32>, 4>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[0] = many[lane.x][0];
}
