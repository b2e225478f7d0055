// [contract] refused no-entry-point: nothing to run.

fn main() {
}
