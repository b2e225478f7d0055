//! The device: which adapter, with which limits, and what its errors become.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvasir_gpu::{Adapter, AdapterChoice, AdapterKind};

use crate::failure::Failure;

/// Longest wait for one submission before asking again; the host sets the deadline.
const WAIT_STEP: Duration = Duration::from_secs(3600);
/// Largest buffer and binding that is asked for: a matrix beyond it is split anyway.
const MAX_BINDING_BYTES: u64 = 1 << 30;
/// Smallest binding that a host may set.
const MIN_BINDING_BYTES: u64 = 16 << 10;

/// An open device.
pub struct Device {
    /// What wgpu calls a device.
    pub device: wgpu::Device,
    /// Its one queue.
    pub queue: wgpu::Queue,
    /// What it is, for people.
    pub adapter: Adapter,
    /// Largest binding of a storage buffer in bytes.
    pub binding_bytes: u64,
    first_error: Arc<Mutex<Option<String>>>,
}

impl Device {
    /// Opens the strongest adapter that `choice` allows. `binding_bytes` above zero lowers the largest binding.
    ///
    /// # Errors
    /// No such adapter, or a driver that refuses.
    pub fn open(choice: AdapterChoice, binding_bytes: u32) -> Result<Self, Failure> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        descriptor.flags = wgpu::InstanceFlags::empty();
        let instance = wgpu::Instance::new(descriptor);
        let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        adapters.retain(|adapter| {
            let software = kind(adapter) == AdapterKind::Software;
            match choice {
                AdapterChoice::Any => true,
                AdapterChoice::Hardware => !software,
                AdapterChoice::Software => software,
            }
        });
        // The kinds are numbered from the strongest to the weakest.
        adapters.sort_by_key(|adapter| kind(adapter) as u8);
        let mut refused = Vec::new();
        for adapter in &adapters {
            match Device::with(adapter, binding_bytes) {
                Ok(device) => return Ok(device),
                Err(reason) => refused.push(format!("{}: {reason}", adapter.get_info().name)),
            }
        }
        Err(Failure::device(match (refused.is_empty(), choice) {
            (false, _) => refused.join("; "),
            (true, AdapterChoice::Any) => "no Vulkan device was found".to_owned(),
            (true, AdapterChoice::Hardware) => "no Vulkan device but in software was found".to_owned(),
            (true, AdapterChoice::Software) => "no Vulkan device in software was found".to_owned(),
        }))
    }

    fn with(adapter: &wgpu::Adapter, binding_bytes: u32) -> Result<Self, String> {
        let offered = adapter.limits();
        // The limits that every WebGPU device has, and only bindings and buffers larger where the device allows it.
        let mut limits = wgpu::Limits::default().or_worse_values_from(&offered);
        let largest = offered.max_storage_buffer_binding_size.min(offered.max_buffer_size);
        let binding = match binding_bytes {
            0 => largest.min(MAX_BINDING_BYTES),
            wanted => u64::from(wanted).max(MIN_BINDING_BYTES).min(largest),
        };
        // Vulkan wants whole words; rows are bound in fours of them.
        let binding = binding & !0xff;
        limits.max_storage_buffer_binding_size = binding;
        limits.max_buffer_size = limits.max_buffer_size.max(binding);
        let descriptor = wgpu::DeviceDescriptor {
            label: None,
            required_features: wgpu::Features::empty(),
            required_limits: limits.clone(),
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let (device, queue) =
            pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| error.to_string())?;
        let first_error = Arc::new(Mutex::new(None));
        let errors = Arc::clone(&first_error);
        // wgpu's own handler panics.
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            errors.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
        }));
        device.set_device_lost_callback(|reason, message| {
            eprintln!("the device was lost ({reason:?}): {message}");
            crate::leave::exit(crate::leave::EXIT_DEVICE_LOST);
        });
        let info = adapter.get_info();
        let described = Adapter {
            name: info.name.clone(),
            driver: [&info.driver[..], &info.driver_info[..]].join(" ").trim().to_owned(),
            kind: kind(adapter),
            binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
        };
        Ok(Device { device, queue, adapter: described, binding_bytes: binding, first_error })
    }

    /// A buffer, or the reason why there is none.
    ///
    /// # Errors
    /// No memory, or more than the device allows.
    pub fn buffer(&self, bytes: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer, Failure> {
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes,
            usage,
            mapped_at_creation: false,
        });
        let errors = [pollster::block_on(validation.pop()), pollster::block_on(memory.pop())];
        match errors.into_iter().flatten().next() {
            Some(error) => Err(Failure::room(format!("a buffer of {bytes} bytes: {error}"))),
            None => Ok(buffer),
        }
    }

    /// Waits until a submission, and all before it, have ended.
    ///
    /// # Errors
    /// The device's own.
    pub fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<(), Failure> {
        let poll = wgpu::PollType::Wait { submission_index: Some(submission), timeout: Some(WAIT_STEP) };
        match self.device.poll(poll) {
            Ok(_) => self.check(),
            Err(error) => Err(Failure::request(format!("waiting for the device: {error}"))),
        }
    }

    /// The first error since the last check, of those that nobody else caught.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), Failure> {
        match self.first_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(Failure::request(format!("the device says: {error}"))),
            None => Ok(()),
        }
    }
}

fn kind(adapter: &wgpu::Adapter) -> AdapterKind {
    match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
        wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
        wgpu::DeviceType::Cpu => AdapterKind::Software,
        wgpu::DeviceType::Other => AdapterKind::Other,
    }
}
