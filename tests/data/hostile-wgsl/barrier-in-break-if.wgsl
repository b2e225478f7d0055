// [row 29] refused barrier: the loop ends by a condition at its end.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    var i = 0u;
    loop {
        workgroupBarrier();
        continuing {
            i++;
            break if i > lane.x;
        }
    }
}
