;; Wants to know the time.
(component
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance (export "now" (func (result u64))))))
