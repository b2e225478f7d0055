//! Barriers stand only where all invocations of a workgroup arrive together.
//!
//! WGSL demands it and naga does not check it; on a GPU a barrier that some invocations miss hangs or gives anything. The analysis is
//! conservative: a value counts as uniform (the same for all invocations of a workgroup) only if it is made of constants,
//! workgroup_id, num_workgroups, buffers that nobody writes, and local variables that only ever get such values under such
//! conditions. Control flow is uniform under uniform conditions, until some invocations may have left: by `return`, or by `break`
//! or `continue` for the rest of the loop.

use naga::{
    AddressSpace, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, Statement,
    StorageAccess,
};

use crate::error::ShaderError;
use crate::module_rules::line;

/// Checks every function; gives for each entry point whether it has barriers.
pub(crate) fn check(module: &Module, source: &str) -> Result<Vec<bool>, ShaderError> {
    // Callees stand before their callers. A function with barriers is analysed with arguments of which nothing is known, and its
    // call is then as good as a barrier.
    let mut has_barriers: Vec<bool> = Vec::with_capacity(module.functions.len());
    for (_, function) in module.functions.iter() {
        let name = function.name.as_deref().unwrap_or_default();
        has_barriers.push(analyse(module, function, &has_barriers, false, name, source)?);
    }
    let entries = module.entry_points.iter();
    entries.map(|entry| analyse(module, &entry.function, &has_barriers, true, &entry.name, source)).collect()
}

/// Whether `function` has barriers, all of which stand in uniform control flow.
fn analyse(
    module: &Module,
    function: &Function,
    has_barriers: &[bool],
    is_entry: bool,
    name: &str,
    source: &str,
) -> Result<bool, ShaderError> {
    if !reaches_barrier(&function.body, has_barriers) {
        return Ok(false);
    }
    let mut flow = Flow {
        module,
        function,
        has_barriers,
        is_entry,
        varying_locals: vec![false; function.local_variables.len()],
        varying_values: vec![false; function.expressions.len()],
        varying_loops: Vec::new(),
        next_loop: 0,
        changed: true,
        astray: None,
    };
    // Everything begins uniform; each pass finds more that is not. At least one local or loop changes in every pass but the last.
    while flow.changed {
        flow.changed = false;
        flow.values();
        flow.next_loop = 0;
        flow.astray = None;
        flow.block(&function.body, true);
    }
    match flow.astray {
        Some(span) => Err(ShaderError::Barrier { line: line(span, source), function: name.to_owned() }),
        None => Ok(true),
    }
}

fn is_barrier(statement: &Statement, has_barriers: &[bool]) -> bool {
    match statement {
        Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => true,
        Statement::Call { function, .. } => has_barriers.get(function.index()).copied().unwrap_or(true),
        _ => false,
    }
}

fn reaches_barrier(block: &Block, has_barriers: &[bool]) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Block(block) => reaches_barrier(block, has_barriers),
        Statement::If { accept, reject, .. } => {
            reaches_barrier(accept, has_barriers) || reaches_barrier(reject, has_barriers)
        }
        Statement::Switch { cases, .. } => cases.iter().any(|case| reaches_barrier(&case.body, has_barriers)),
        Statement::Loop { body, continuing, .. } => {
            reaches_barrier(body, has_barriers) || reaches_barrier(continuing, has_barriers)
        }
        statement => is_barrier(statement, has_barriers),
    })
}

struct Flow<'m> {
    module: &'m Module,
    function: &'m Function,
    has_barriers: &'m [bool],
    is_entry: bool,
    /// Locals that may differ between invocations, by index.
    varying_locals: Vec<bool>,
    /// Expressions that may differ between invocations, by index.
    varying_values: Vec<bool>,
    /// Loops that some invocations may leave or go on with before others, in the order of the walk.
    varying_loops: Vec<bool>,
    /// The number of the next loop of the walk.
    next_loop: usize,
    /// Whether this pass found something new.
    changed: bool,
    /// The first barrier of this pass that stands wrong.
    astray: Option<naga::Span>,
}

/// What some invocations may have done in a block while others have not.
#[derive(Clone, Copy, Default)]
struct Left {
    function: bool,
    the_loop: bool,
}

impl Flow<'_> {
    /// Which expressions vary, given which locals do. Operands stand before what uses them.
    fn values(&mut self) {
        for (handle, expression) in self.function.expressions.iter() {
            self.varying_values[handle.index()] = self.varies(expression);
        }
    }

    fn varies(&self, expression: &Expression) -> bool {
        let value = |handle: Handle<Expression>| self.varying_values[handle.index()];
        let maybe = |handle: Option<Handle<Expression>>| handle.is_some_and(value);
        match expression {
            Expression::Literal(_)
            | Expression::Constant(_)
            | Expression::ZeroValue(_)
            | Expression::GlobalVariable(_)
            | Expression::LocalVariable(_)
            | Expression::WorkGroupUniformLoadResult { .. }
            | Expression::ArrayLength(_) => false,
            Expression::FunctionArgument(index) => !(self.is_entry && self.is_uniform_argument(*index)),
            Expression::Compose { components, .. } => components.iter().any(|&component| value(component)),
            Expression::Access { base, index } => value(*base) || value(*index),
            Expression::AccessIndex { base, .. } => value(*base),
            Expression::Splat { value: splat, .. } => value(*splat),
            Expression::Swizzle { vector, .. } => value(*vector),
            Expression::Load { pointer } => value(*pointer) || self.memory_varies(*pointer),
            Expression::Unary { expr, .. } | Expression::As { expr, .. } => value(*expr),
            Expression::Binary { left, right, .. } => value(*left) || value(*right),
            Expression::Select { condition, accept, reject } => {
                value(*condition) || value(*accept) || value(*reject)
            }
            Expression::Relational { argument, .. } => value(*argument),
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                value(*arg) || maybe(*arg1) || maybe(*arg2) || maybe(*arg3)
            }
            _ => true,
        }
    }

    fn is_uniform_argument(&self, index: u32) -> bool {
        let binding =
            self.function.arguments.get(index as usize).and_then(|argument| argument.binding.as_ref());
        matches!(binding, Some(Binding::BuiltIn(BuiltIn::WorkGroupId | BuiltIn::NumWorkGroups)))
    }

    /// Whether the memory behind a pointer may hold another value for another invocation.
    fn memory_varies(&self, pointer: Handle<Expression>) -> bool {
        match self.root(pointer) {
            Root::Local(local) => self.varying_locals[local.index()],
            Root::Global(space) => match space {
                AddressSpace::Uniform => false,
                AddressSpace::Storage { access } => access.contains(StorageAccess::STORE),
                _ => true,
            },
            Root::Unknown => true,
        }
    }

    fn root(&self, mut pointer: Handle<Expression>) -> Root {
        loop {
            match self.function.expressions[pointer] {
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
                Expression::LocalVariable(local) => return Root::Local(local),
                Expression::GlobalVariable(global) => {
                    return Root::Global(self.module.global_variables[global].space);
                }
                _ => return Root::Unknown,
            }
        }
    }

    fn value(&self, handle: Handle<Expression>) -> bool {
        self.varying_values[handle.index()]
    }

    fn make_local_vary(&mut self, local: Handle<LocalVariable>) {
        let known = &mut self.varying_locals[local.index()];
        self.changed |= !*known;
        *known = true;
    }

    /// Walks a block that all invocations enter together if `uniform`.
    fn block(&mut self, block: &Block, mut uniform: bool) -> Left {
        let mut left = Left::default();
        for (statement, span) in block.span_iter() {
            if is_barrier(statement, self.has_barriers) && !uniform {
                self.astray = self.astray.or(Some(*span));
            }
            let inner = self.statement(statement, uniform);
            left.function |= inner.function;
            left.the_loop |= inner.the_loop;
            uniform = uniform && !left.function && !left.the_loop;
        }
        left
    }

    fn statement(&mut self, statement: &Statement, uniform: bool) -> Left {
        let mut left = Left::default();
        match statement {
            Statement::Block(block) => left = self.block(block, uniform),
            Statement::If { condition, accept, reject } => {
                let uniform = uniform && !self.value(*condition);
                for block in [accept, reject] {
                    left = either(left, self.block(block, uniform));
                }
            }
            Statement::Switch { selector, cases } => {
                let uniform = uniform && !self.value(*selector);
                for case in cases {
                    // A `break` leaves the switch alone, but which of the two it leaves is not told apart: more is refused than
                    // need be.
                    left = either(left, self.block(&case.body, uniform));
                }
            }
            Statement::Loop { body, continuing, break_if } => {
                left = self.a_loop(body, continuing, *break_if, uniform)
            }
            Statement::Break | Statement::Continue => left.the_loop = !uniform,
            Statement::Return { .. } | Statement::Kill => left.function = !uniform,
            Statement::Store { pointer, value } => {
                if let Root::Local(local) = self.root(*pointer)
                    && (!uniform || self.value(*pointer) || self.value(*value))
                {
                    self.make_local_vary(local);
                }
            }
            Statement::Call { arguments, .. } => {
                for argument in arguments {
                    if let Root::Local(local) = self.root(*argument) {
                        self.make_local_vary(local);
                    }
                }
            }
            _ => {}
        }
        left
    }

    fn a_loop(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
        uniform: bool,
    ) -> Left {
        let number = self.next_loop;
        self.next_loop += 1;
        if self.varying_loops.len() <= number {
            self.varying_loops.push(false);
        }
        let inside = uniform && !self.varying_loops[number];
        let mut left = self.block(body, inside);
        left = either(left, self.block(continuing, inside && !left.function && !left.the_loop));
        left.the_loop |= break_if.is_some_and(|condition| self.value(condition));
        if (left.function || left.the_loop) && !self.varying_loops[number] {
            self.varying_loops[number] = true;
            self.changed = true;
        }
        // After a loop those that left it early and late meet again; those that left the function do not.
        Left { function: left.function, the_loop: false }
    }
}

fn either(a: Left, b: Left) -> Left {
    Left { function: a.function || b.function, the_loop: a.the_loop || b.the_loop }
}

/// What a pointer points into.
enum Root {
    Local(Handle<LocalVariable>),
    Global(AddressSpace),
    Unknown,
}
