// [row 28] accepted: 2^11 calls: what the limit lets pass.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn f0() {
    out[0] += 1u;
}
fn f1() {
    f0();
    f0();
}
fn f2() {
    f1();
    f1();
}
fn f3() {
    f2();
    f2();
}
fn f4() {
    f3();
    f3();
}
fn f5() {
    f4();
    f4();
}
fn f6() {
    f5();
    f5();
}
fn f7() {
    f6();
    f6();
}
fn f8() {
    f7();
    f7();
}
fn f9() {
    f8();
    f8();
}
fn f10() {
    f9();
    f9();
}
fn f11() {
    f10();
    f10();
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    f11();
}
