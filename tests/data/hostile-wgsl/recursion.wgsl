// [row 23] refused syntax: functions that call each other for ever.

fn f() {
    g();
}
fn g() {
    f();
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    f();
}
