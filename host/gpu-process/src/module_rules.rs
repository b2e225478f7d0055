//! Which constructs of WGSL a kernel may be made of: an allow-list over naga's module, so that what a later naga adds is refused
//! until someone allows it.

use naga::{
    AddressSpace, Barrier, Binding, Block, BuiltIn, Expression, Function, Module, ScalarKind, ShaderStage,
    Span, Statement, StorageAccess, TypeInner,
};

use crate::error::{Resource, ShaderError};
use crate::front_door::{BufferFacts, BufferKind};
use crate::limits::ShaderLimits;

const BUFFERS_ALONE: &str = "a kernel has buffers alone; read and write storage buffers";
const NOT_EVERYWHERE: &str = "it is not there on every GPU; write it with integers and f32";
const NO_COUNTERPART: &str = "a kernel has no use for it; remove it";

/// Checks types, bindings, entry points, statements and expressions; gives the buffers.
pub(crate) fn check(
    module: &Module,
    source: &str,
    limits: &ShaderLimits,
) -> Result<Vec<BufferFacts>, ShaderError> {
    let line = |span: Span| line(span, source);
    if module.entry_points.is_empty() {
        return Err(ShaderError::NoEntryPoint);
    }
    if module.entry_points.len() > limits.entry_points {
        return Err(ShaderError::OverBudget {
            place: "the module".to_owned(),
            resource: Resource::EntryPoints,
            value: module.entry_points.len() as u64,
            limit: limits.entry_points as u64,
        });
    }
    if let Some((handle, _)) = module.overrides.iter().next() {
        let line = line(module.overrides.get_span(handle));
        return Err(not_allowed(
            line,
            "`override`",
            "constants that are set later escape the checks; use `const`",
        ));
    }
    let buffers = buffers(module, source, limits)?;
    for (handle, declared) in module.types.iter() {
        if let Some((what, reason)) = refused_type(&declared.inner) {
            return Err(not_allowed(line(module.types.get_span(handle)), what, reason));
        }
    }
    for (_, function) in module.functions.iter() {
        check_function(module, function, source)?;
    }
    for entry in &module.entry_points {
        if entry.stage != ShaderStage::Compute {
            return Err(ShaderError::NotCompute { entry: entry.name.clone() });
        }
        if entry.workgroup_size_overrides.is_some() {
            return Err(not_allowed(0, "a workgroup size that is set later", "use numbers"));
        }
        let invocations =
            entry.workgroup_size.iter().fold(1u64, |all, &size| all.saturating_mul(u64::from(size)));
        if invocations > u64::from(limits.invocations) {
            return Err(ShaderError::OverBudget {
                place: entry.name.clone(),
                resource: Resource::Invocations,
                value: invocations,
                limit: u64::from(limits.invocations),
            });
        }
        check_builtins(module, &entry.function)?;
        check_function(module, &entry.function, source)?;
    }
    Ok(buffers)
}

/// The line of a span, from 1; 0 for none.
pub(crate) fn line(span: Span, source: &str) -> u32 {
    if span.is_defined() { span.location(source).line_number } else { 0 }
}

fn not_allowed(line: u32, what: impl Into<String>, reason: &'static str) -> ShaderError {
    ShaderError::NotAllowed { line, what: what.into(), reason }
}

fn refused_type(inner: &TypeInner) -> Option<(&'static str, &'static str)> {
    match inner {
        TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } | TypeInner::Matrix { scalar, .. } => {
            let usual = match scalar.kind {
                ScalarKind::Sint | ScalarKind::Uint | ScalarKind::Float => scalar.width == 4,
                ScalarKind::Bool => true,
                // Left over from constants that nothing uses.
                ScalarKind::AbstractInt | ScalarKind::AbstractFloat => true,
            };
            (!usual).then_some(("a number that has not 32 bits", NOT_EVERYWHERE))
        }
        TypeInner::Pointer { .. }
        | TypeInner::ValuePointer { .. }
        | TypeInner::Array { .. }
        | TypeInner::Struct { .. } => None,
        TypeInner::Atomic(_) => Some((
            "`atomic`",
            "sums would depend on the order of invocations; let each invocation write its own result",
        )),
        TypeInner::Image { .. } => Some(("a texture", BUFFERS_ALONE)),
        TypeInner::Sampler { .. } => Some(("a sampler", BUFFERS_ALONE)),
        TypeInner::BindingArray { .. } => Some((
            "`binding_array`",
            "its indices are not checked at run time; use one buffer with an offset",
        )),
        TypeInner::AccelerationStructure { .. } | TypeInner::RayQuery { .. } => {
            Some(("ray tracing", NO_COUNTERPART))
        }
        TypeInner::CooperativeMatrix { .. } => Some(("a cooperative matrix", NOT_EVERYWHERE)),
    }
}

fn buffers(module: &Module, source: &str, limits: &ShaderLimits) -> Result<Vec<BufferFacts>, ShaderError> {
    let mut buffers: Vec<BufferFacts> = Vec::new();
    for (handle, variable) in module.global_variables.iter() {
        let line = line(module.global_variables.get_span(handle), source);
        let name = variable.name.clone().unwrap_or_default();
        let kind = match variable.space {
            AddressSpace::Private | AddressSpace::WorkGroup => continue,
            AddressSpace::Uniform => BufferKind::Uniform,
            AddressSpace::Storage { access } if access == StorageAccess::LOAD => BufferKind::Read,
            AddressSpace::Storage { access } if access == StorageAccess::LOAD | StorageAccess::STORE => {
                BufferKind::ReadWrite
            }
            AddressSpace::Handle => {
                return Err(not_allowed(line, format!("`{name}`, a texture or sampler,"), BUFFERS_ALONE));
            }
            AddressSpace::Function
            | AddressSpace::Storage { .. }
            | AddressSpace::Immediate
            | AddressSpace::TaskPayload
            | AddressSpace::RayPayload
            | AddressSpace::IncomingRayPayload => {
                return Err(not_allowed(
                    line,
                    format!("the address space of `{name}`"),
                    "a kernel has uniform, storage, workgroup, private and function variables alone",
                ));
            }
        };
        let Some(resource) = &variable.binding else {
            return Err(not_allowed(
                line,
                format!("`{name}` without a binding"),
                "give it @group(0) @binding(n)",
            ));
        };
        if resource.group != 0 {
            return Err(not_allowed(
                line,
                format!("@group({})", resource.group),
                "the host binds group 0 alone",
            ));
        }
        if limits.bindings.get(resource.binding as usize) != Some(&kind) {
            return Err(not_allowed(
                line,
                format!("`{name}` at @binding({})", resource.binding),
                "the host binds something else there, or nothing; see the contract in docs/kernel.md",
            ));
        }
        if let Some(other) = buffers.iter().find(|buffer| buffer.binding == resource.binding) {
            let what = format!("@binding({}) for `{name}` and `{}`", resource.binding, other.name);
            return Err(not_allowed(line, what, "two variables on one buffer escape the checks; use one"));
        }
        let bytes = module.types[variable.ty].inner.try_size(module.to_ctx()).map_or(u64::MAX, u64::from);
        if kind == BufferKind::Uniform && bytes > limits.uniform_bytes {
            let limit = limits.uniform_bytes;
            return Err(ShaderError::OverBudget {
                place: name,
                resource: Resource::UniformBytes,
                value: bytes,
                limit,
            });
        }
        buffers.push(BufferFacts { binding: resource.binding, name, kind, least_bytes: bytes });
    }
    Ok(buffers)
}

fn check_builtins(module: &Module, function: &Function) -> Result<(), ShaderError> {
    let allowed = |binding: Option<&Binding>| {
        matches!(
            binding,
            Some(Binding::BuiltIn(
                BuiltIn::GlobalInvocationId
                    | BuiltIn::LocalInvocationId
                    | BuiltIn::LocalInvocationIndex
                    | BuiltIn::WorkGroupId
                    | BuiltIn::NumWorkGroups
            ))
        )
    };
    for argument in &function.arguments {
        let fits = match &module.types[argument.ty].inner {
            TypeInner::Struct { members, .. } => {
                members.iter().all(|member| allowed(member.binding.as_ref()))
            }
            _ => allowed(argument.binding.as_ref()),
        };
        if !fits {
            let name = argument.name.clone().unwrap_or_default();
            return Err(not_allowed(
                0,
                format!("the argument `{name}` of an entry point"),
                "only global_invocation_id, local_invocation_id, local_invocation_index, workgroup_id and num_workgroups are \
                 the same on every GPU",
            ));
        }
    }
    Ok(())
}

fn check_function(module: &Module, function: &Function, source: &str) -> Result<(), ShaderError> {
    for (handle, expression) in function.expressions.iter() {
        if let Some((what, reason)) = refused_expression(expression) {
            return Err(not_allowed(line(function.expressions.get_span(handle), source), what, reason));
        }
    }
    check_block(module, function, &function.body, source)
}

fn refused_expression(expression: &Expression) -> Option<(&'static str, &'static str)> {
    match expression {
        Expression::Literal(_)
        | Expression::Constant(_)
        | Expression::ZeroValue(_)
        | Expression::Compose { .. }
        | Expression::Access { .. }
        | Expression::AccessIndex { .. }
        | Expression::Splat { .. }
        | Expression::Swizzle { .. }
        | Expression::FunctionArgument(_)
        | Expression::GlobalVariable(_)
        | Expression::LocalVariable(_)
        | Expression::Load { .. }
        | Expression::Unary { .. }
        | Expression::Binary { .. }
        | Expression::Select { .. }
        | Expression::Relational { .. }
        | Expression::Math { .. }
        | Expression::As { .. }
        | Expression::CallResult(_)
        | Expression::WorkGroupUniformLoadResult { .. }
        | Expression::ArrayLength(_) => None,
        Expression::Override(_) => {
            Some(("`override`", "constants that are set later escape the checks; use `const`"))
        }
        Expression::ImageSample { .. } | Expression::ImageLoad { .. } | Expression::ImageQuery { .. } => {
            Some(("reading a texture", BUFFERS_ALONE))
        }
        Expression::Derivative { .. } => Some(("a derivative", NO_COUNTERPART)),
        Expression::AtomicResult { .. } => Some(("an atomic operation", NO_COUNTERPART)),
        Expression::RayQueryVertexPositions { .. }
        | Expression::RayQueryProceedResult
        | Expression::RayQueryGetIntersection { .. } => Some(("ray tracing", NO_COUNTERPART)),
        Expression::SubgroupBallotResult | Expression::SubgroupOperationResult { .. } => Some((
            "a subgroup operation",
            "its result depends on the GPU's width; use workgroup memory and barriers",
        )),
        Expression::CooperativeLoad { .. } | Expression::CooperativeMultiplyAdd { .. } => {
            Some(("a cooperative matrix", NOT_EVERYWHERE))
        }
    }
}

fn check_block(module: &Module, function: &Function, block: &Block, source: &str) -> Result<(), ShaderError> {
    for (statement, span) in block.span_iter() {
        let refuse = |what: &str, reason| Err(not_allowed(line(*span, source), what, reason));
        match statement {
            Statement::Emit(_)
            | Statement::Break
            | Statement::Continue
            | Statement::Return { .. }
            | Statement::Store { .. }
            | Statement::WorkGroupUniformLoad { .. } => {}
            Statement::ControlBarrier(barrier) => {
                if !(Barrier::STORAGE | Barrier::WORK_GROUP).contains(*barrier) {
                    return refuse("this barrier", "use workgroupBarrier or storageBarrier");
                }
            }
            Statement::Call { arguments, .. } => {
                // A pointer to a part of something makes the SPIR-V writer of naga 30 panic, and WGSL without extensions has none.
                let whole = |expression: &Expression| {
                    matches!(
                        expression,
                        Expression::LocalVariable(_)
                            | Expression::GlobalVariable(_)
                            | Expression::FunctionArgument(_)
                    )
                };
                let part = |argument: &naga::Handle<Expression>| {
                    let expression = &function.expressions[*argument];
                    is_pointer(module, function, *argument) && !whole(expression)
                };
                if arguments.iter().any(part) {
                    return refuse(
                        "a pointer to a part of a variable as an argument",
                        "pass the variable, or the value",
                    );
                }
            }
            Statement::Block(block) => check_block(module, function, block, source)?,
            Statement::If { accept, reject, .. } => {
                check_block(module, function, accept, source)?;
                check_block(module, function, reject, source)?;
            }
            Statement::Switch { cases, .. } => {
                for case in cases {
                    check_block(module, function, &case.body, source)?;
                }
            }
            Statement::Loop { body, continuing, .. } => {
                check_block(module, function, body, source)?;
                check_block(module, function, continuing, source)?;
            }
            Statement::MemoryBarrier(_) => {
                return refuse("a memory barrier alone", "use workgroupBarrier or storageBarrier");
            }
            Statement::Kill => return refuse("`discard`", NO_COUNTERPART),
            Statement::ImageStore { .. } | Statement::ImageAtomic { .. } => {
                return refuse("writing a texture", BUFFERS_ALONE);
            }
            Statement::Atomic { .. } => return refuse("an atomic operation", NO_COUNTERPART),
            Statement::RayQuery { .. } | Statement::RayPipelineFunction(_) => {
                return refuse("ray tracing", NO_COUNTERPART);
            }
            Statement::SubgroupBallot { .. }
            | Statement::SubgroupGather { .. }
            | Statement::SubgroupCollectiveOperation { .. } => {
                return refuse(
                    "a subgroup operation",
                    "its result depends on the GPU's width; use workgroup memory",
                );
            }
            Statement::CooperativeStore { .. } => return refuse("a cooperative matrix", NOT_EVERYWHERE),
        }
    }
    Ok(())
}

/// Whether `expression` is a reference to a place in memory: built from a variable or a pointer argument by indices alone.
fn is_pointer(module: &Module, function: &Function, mut expression: naga::Handle<Expression>) -> bool {
    loop {
        match function.expressions[expression] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => expression = base,
            Expression::LocalVariable(_) | Expression::GlobalVariable(_) => return true,
            Expression::FunctionArgument(index) => {
                let argument = function.arguments.get(index as usize);
                return argument.is_some_and(|argument| {
                    matches!(
                        module.types[argument.ty].inner,
                        TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
                    )
                });
            }
            _ => return false,
        }
    }
}
