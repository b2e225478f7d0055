;; Answers a list of 32 MiB where a few bytes are due, all of it inside its memory: the host must not copy it.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (drop (memory.grow (i32.const 600)))
  (i32.store8 (i32.const 0) (i32.const 0))
  (i32.store (i32.const 4) (i32.const 1024))
  (i32.store (i32.const 8) (i32.const 0x800000))
  (i32.const 0))
