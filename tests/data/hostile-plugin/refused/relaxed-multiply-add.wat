;; Fused on some CPUs, not on others.
(component
  (core module
    (func (param v128 v128 v128) (result v128)
      (f32x4.relaxed_madd (local.get 0) (local.get 1) (local.get 2)))))
