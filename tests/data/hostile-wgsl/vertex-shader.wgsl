// [contract] refused not-compute: only compute shaders are run.

@vertex
fn main() -> @builtin(position) vec4<f32> {
    return vec4<f32>(1.0);
}
