;; Answers how many rows the call has, in every value.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (call $answer (i32.mul (local.get $hidden) (local.get $count))
    (i32.reinterpret_f32 (f32.convert_i32_u (local.get $count)))))
