;; Valid, harmless, and not a kernel.
(component (core module (memory 1)))
