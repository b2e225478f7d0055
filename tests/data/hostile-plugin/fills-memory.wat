;; One bulk instruction over all the memory it can get, again and again.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (loop $grow
    (br_if $grow (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
  (loop $again
    (memory.fill (i32.const 0) (i32.const 1) (i32.mul (memory.size) (i32.const 65536)))
    (br $again))
  unreachable)
