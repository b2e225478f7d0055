//! How fast the device reads its memory: a kernel of our own, for placement and for comparison.

use std::time::Instant;

use crate::device::Device;
use crate::failure::Failure;

/// Passes that are measured; the fastest counts.
const PASSES: usize = 5;
/// Workgroups of a pass, so that each invocation reads many vectors and the loop stays short.
const WORKGROUPS: u32 = 2048;
/// Most bytes that are read.
const MAX_BYTES: u64 = 256 << 20;

const SOURCE: &str = "
@group(0) @binding(0) var<storage, read> memory: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;

@compute @workgroup_size(256)
fn read_all(@builtin(global_invocation_id) id: vec3<u32>) {
    let step = 2048u * 256u;
    var sum = vec4<u32>();
    for (var at = id.x; at < arrayLength(&memory); at += step) {
        sum += memory[at];
    }
    sums[id.x] = sum.x + sum.y + sum.z + sum.w;
}
";

/// Reads about `bytes` bytes; returns the bytes read and the nanoseconds of the fastest pass.
///
/// # Errors
/// No memory, or a device that fails.
pub fn measure(device: &Device, bytes: u64) -> Result<(u64, u64), Failure> {
    let least = u64::from(WORKGROUPS) * 256 * 16;
    let bytes = bytes.min(MAX_BYTES).min(device.binding_bytes).max(least) / least * least;
    let memory = device.buffer(bytes, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST)?;
    let sums = device.buffer(u64::from(WORKGROUPS) * 256 * 4, wgpu::BufferUsages::STORAGE)?;
    let module = device.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(SOURCE.into()),
    });
    let pipeline = device.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("read_all"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    device.check()?;
    let group = device.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: memory.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: sums.as_entire_binding() },
        ],
    });
    let mut fastest = u64::MAX;
    // The first pass fills the memory with zeros and is not counted.
    for pass in 0..=PASSES {
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut compute = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            compute.set_pipeline(&pipeline);
            compute.set_bind_group(0, &group, &[]);
            compute.dispatch_workgroups(WORKGROUPS, 1, 1);
        }
        let begin = Instant::now();
        device.wait(device.queue.submit([encoder.finish()]))?;
        if pass > 0 {
            fastest = fastest.min(begin.elapsed().as_nanos() as u64);
        }
    }
    Ok((bytes, fastest))
}
