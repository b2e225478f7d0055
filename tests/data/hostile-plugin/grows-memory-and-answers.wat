;; Grows its memory until it gets no more, and answers all the same.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (loop $again
    (br_if $again (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
  (call $answer (i32.mul (local.get $hidden) (local.get $count)) (i32.const 0x3f800000)))
