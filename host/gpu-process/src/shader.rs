//! A checked shader as pipelines, by weight format and row format.

use std::collections::HashMap;

use kvasir_gpu::message::Rows;

use crate::device::Device;
use crate::failure::Failure;
use crate::front_door::check;
use crate::limits::ShaderLimits;

/// Jobs that one dispatch reads.
pub const JOBS: usize = 64;
/// Bytes of a job.
pub const JOB_BYTES: usize = 48;
/// Bytes of the uniform buffer of a dispatch; a multiple of every device's alignment.
pub const JOBS_BYTES: u64 = (JOBS * JOB_BYTES) as u64;

/// The pipelines of a shader.
pub struct Shader {
    /// How the four bindings are laid out, the same for every entry point.
    pub layout: wgpu::BindGroupLayout,
    products: HashMap<String, Products>,
    steps: [Option<wgpu::ComputePipeline>; 3],
}

/// What a shader does with one weight format.
pub struct Products {
    /// A workgroup makes 32 outputs of one row.
    pub one_row: wgpu::ComputePipeline,
    /// A workgroup makes 64 outputs of four rows.
    pub many_rows: wgpu::ComputePipeline,
    /// A workgroup makes the integer sums of 64 outputs and one row; float formats have none.
    pub accumulators: Option<wgpu::ComputePipeline>,
}

impl Shader {
    /// Compiles what `formats` need.
    ///
    /// # Errors
    /// A source that is refused, an entry point that is missing, a driver that fails.
    pub fn compile(device: &Device, source: &str, formats: &[&str]) -> Result<Self, Failure> {
        let checked =
            check(source, &ShaderLimits::default()).map_err(|error| Failure::shader(error.to_string()))?;
        let scope = device.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let layout = device.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &[
                entry(0, wgpu::BufferBindingType::Uniform),
                entry(1, wgpu::BufferBindingType::Storage { read_only: true }),
                entry(2, wgpu::BufferBindingType::Storage { read_only: true }),
                entry(3, wgpu::BufferBindingType::Storage { read_only: false }),
            ],
        });
        let pipeline_layout = device.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        // With all of wgpu's run-time checks.
        let module = device.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(Failure::shader(error.to_string()));
        }
        let pipeline = |name: &str| -> Result<Option<wgpu::ComputePipeline>, Failure> {
            if !checked.entry_points.iter().any(|entry| entry.name == name) {
                return Ok(None);
            }
            let validation = device.device.push_error_scope(wgpu::ErrorFilter::Validation);
            let internal = device.device.push_error_scope(wgpu::ErrorFilter::Internal);
            let pipeline = device.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(name),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            let errors = [pollster::block_on(internal.pop()), pollster::block_on(validation.pop())];
            match errors.into_iter().flatten().next() {
                Some(error) => Err(Failure::shader(format!("entry point {name}: {error}"))),
                None => Ok(Some(pipeline)),
            }
        };
        let due = |name: String| -> Result<wgpu::ComputePipeline, Failure> {
            pipeline(&name)?.ok_or_else(|| Failure::shader(format!("it has no entry point {name}")))
        };
        let mut products = HashMap::new();
        for format in formats {
            let prefix = format.to_ascii_lowercase();
            let of_format = Products {
                one_row: due(format!("{prefix}_one_row"))?,
                many_rows: due(format!("{prefix}_many_rows"))?,
                accumulators: pipeline(&format!("{prefix}_accumulators"))?,
            };
            products.insert((*format).to_owned(), of_format);
        }
        let steps = [pipeline("step_f32")?, pipeline("step_q8")?, pipeline("step_q8k")?];
        Ok(Shader { layout, products, steps })
    }

    /// The products of a format.
    ///
    /// # Errors
    /// The shader was not loaded for it.
    pub fn products(&self, format: &str) -> Result<&Products, Failure> {
        self.products
            .get(format)
            .ok_or_else(|| Failure::request(format!("the shader was not loaded for weights of {format}")))
    }

    /// The step to rows of a format.
    ///
    /// # Errors
    /// The shader has none.
    pub fn step(&self, rows: Rows) -> Result<&wgpu::ComputePipeline, Failure> {
        let name = ["step_f32", "step_q8", "step_q8k"][rows as usize];
        self.steps[rows as usize]
            .as_ref()
            .ok_or_else(|| Failure::request(format!("the shader has no entry point {name}")))
    }
}

fn entry(binding: u32, ty: wgpu::BufferBindingType) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}
