//! A lane: the instances that hold one share of the experts.
