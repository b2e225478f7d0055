//! What an entry point costs before it runs: memory of a workgroup and of an invocation, and its size with every call written out,
//! which is what a driver's compiler sees. Each is bounded.

use naga::proc::TypeResolution;
use naga::valid::{FunctionInfo, GlobalUse, ModuleInfo};
use naga::{AddressSpace, Block, Expression, Function, Module, Statement, TypeInner};

use crate::error::{Resource, ShaderError};
use crate::front_door::EntryPointFacts;
use crate::limits::ShaderLimits;

/// Checks the budgets of every entry point, and the sizes of all constants and values. `spirv_words` and `barriers` of the facts are
/// left for others to fill.
pub(crate) fn check(
    module: &Module,
    info: &ModuleInfo,
    limits: &ShaderLimits,
) -> Result<Vec<EntryPointFacts>, ShaderError> {
    check_constants(module, info, limits)?;
    // naga lists functions so that a callee stands before its callers, which also rules out recursion.
    let mut expanded: Vec<Expanded> = Vec::with_capacity(module.functions.len());
    for (handle, function) in module.functions.iter() {
        let name = function.name.clone().unwrap_or_default();
        expanded.push(expand(module, function, &info[handle], &expanded, &name, limits)?);
    }
    let mut facts = Vec::with_capacity(module.entry_points.len());
    for (index, entry) in module.entry_points.iter().enumerate() {
        let info = info.get_entry_point(index);
        let own = expand(module, &entry.function, info, &expanded, &entry.name, limits)?;
        facts.push(entry_point(module, info, entry, &own, limits)?);
    }
    Ok(facts)
}

/// A function with every call written out.
#[derive(Clone, Copy)]
struct Expanded {
    /// Expressions and statements.
    size: u64,
    /// Bytes of local variables.
    locals: u64,
}

fn entry_point(
    module: &Module,
    info: &FunctionInfo,
    entry: &naga::EntryPoint,
    own: &Expanded,
    limits: &ShaderLimits,
) -> Result<EntryPointFacts, ShaderError> {
    let (mut workgroup_bytes, mut private_bytes) = (0u64, own.locals);
    let mut bindings = Vec::new();
    for (handle, variable) in module.global_variables.iter() {
        if info[handle] == GlobalUse::empty() {
            continue;
        }
        let bytes = bytes(module, &module.types[variable.ty].inner);
        match variable.space {
            AddressSpace::WorkGroup => workgroup_bytes = workgroup_bytes.saturating_add(bytes),
            AddressSpace::Private => private_bytes = private_bytes.saturating_add(bytes),
            _ => bindings.extend(variable.binding.as_ref().map(|resource| resource.binding)),
        }
    }
    bindings.sort_unstable();
    let place = &entry.name;
    within(place, Resource::WorkgroupBytes, workgroup_bytes, limits.workgroup_bytes)?;
    within(place, Resource::PrivateBytes, private_bytes, limits.private_bytes)?;
    within(place, Resource::Inlined, own.size, limits.inlined)?;
    Ok(EntryPointFacts {
        name: entry.name.clone(),
        workgroup_size: entry.workgroup_size,
        workgroup_bytes,
        private_bytes,
        inlined: own.size,
        spirv_words: 0,
        barriers: false,
        bindings,
    })
}

fn expand(
    module: &Module,
    function: &Function,
    info: &FunctionInfo,
    callees: &[Expanded],
    name: &str,
    limits: &ShaderLimits,
) -> Result<Expanded, ShaderError> {
    for (handle, expression) in function.expressions.iter() {
        let ty = &info[handle].ty;
        if !is_pointer(module, ty, expression) {
            within(
                name,
                Resource::ValueBytes,
                bytes(module, ty.inner_with(&module.types)),
                limits.value_bytes,
            )?;
        }
    }
    let mut own = Expanded { size: function.expressions.len() as u64, locals: 0 };
    for (_, local) in function.local_variables.iter() {
        own.locals = own.locals.saturating_add(bytes(module, &module.types[local.ty].inner));
    }
    count(&function.body, callees, &mut own);
    // Also of functions that no entry point reaches: a compiler may look at them.
    within(name, Resource::PrivateBytes, own.locals, limits.private_bytes)?;
    within(name, Resource::Inlined, own.size, limits.inlined)?;
    Ok(own)
}

fn count(block: &Block, callees: &[Expanded], own: &mut Expanded) {
    own.size = own.size.saturating_add(block.len() as u64);
    for statement in block.iter() {
        match statement {
            Statement::Block(block) => count(block, callees, own),
            Statement::If { accept, reject, .. } => {
                count(accept, callees, own);
                count(reject, callees, own);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| count(&case.body, callees, own)),
            Statement::Loop { body, continuing, .. } => {
                count(body, callees, own);
                count(continuing, callees, own);
            }
            Statement::Call { function, .. } => {
                // A callee that does not stand before its caller would be a module that the validator refuses.
                let callee = callees.get(function.index());
                let callee = callee.copied().unwrap_or(Expanded { size: u64::MAX, locals: u64::MAX });
                own.size = own.size.saturating_add(callee.size);
                own.locals = own.locals.saturating_add(callee.locals);
            }
            _ => {}
        }
    }
}

fn check_constants(module: &Module, info: &ModuleInfo, limits: &ShaderLimits) -> Result<(), ShaderError> {
    let mut all = 0u64;
    for (_, constant) in module.constants.iter() {
        let name = constant.name.as_deref().unwrap_or("a constant");
        let bytes = bytes(module, &module.types[constant.ty].inner);
        within(name, Resource::ValueBytes, bytes, limits.value_bytes)?;
        all = all.saturating_add(bytes);
        within(name, Resource::ConstantBytes, all, limits.constant_bytes)?;
    }
    for (handle, _) in module.global_expressions.iter() {
        let bytes = bytes(module, info[handle].inner_with(&module.types));
        within("a constant", Resource::ValueBytes, bytes, limits.value_bytes)?;
    }
    for (_, variable) in module.global_variables.iter() {
        let (resource, limit) = match variable.space {
            AddressSpace::WorkGroup => (Resource::WorkgroupBytes, limits.workgroup_bytes),
            AddressSpace::Private => (Resource::PrivateBytes, limits.private_bytes),
            _ => continue,
        };
        let name = variable.name.as_deref().unwrap_or("a variable");
        within(name, resource, bytes(module, &module.types[variable.ty].inner), limit)?;
    }
    Ok(())
}

fn is_pointer(module: &Module, ty: &TypeResolution, expression: &Expression) -> bool {
    matches!(expression, Expression::GlobalVariable(_) | Expression::LocalVariable(_))
        || matches!(ty.inner_with(&module.types), TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. })
}

/// The size of a type in bytes; `u64::MAX` where naga has none for it.
fn bytes(module: &Module, inner: &TypeInner) -> u64 {
    inner.try_size(module.to_ctx()).map_or(u64::MAX, u64::from)
}

fn within(place: &str, resource: Resource, value: u64, limit: u64) -> Result<(), ShaderError> {
    if value > limit {
        return Err(ShaderError::OverBudget { place: place.to_owned(), resource, value, limit });
    }
    Ok(())
}
