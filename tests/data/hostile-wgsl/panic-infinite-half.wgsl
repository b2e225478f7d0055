// [row 25] refused word: naga 30 panics in its parser on an infinite binary16 that is known at compile time.

enable f16;
const infinite: f16 = f16(65520i);
const converted: i32 = i32(infinite);

@compute @workgroup_size(1)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
}
