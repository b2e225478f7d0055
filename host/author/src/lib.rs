//! What the author of a kernel needs: a scaffold that passes, a build, and the conformance suite.
