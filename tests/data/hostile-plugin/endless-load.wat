;; ---- replaces load
;; Never ends while it takes the weights.
(func (export "kvasir:expert/kernel@0.1.0#[static]expert.load")
  (param i32 i32 i32) (param i32 i32 i32) (param i32 i32 i32)
  (param i32 i32) (param i32 i32) (param i32 i32) (result i32)
  (loop $again (br $again))
  unreachable)
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  unreachable)
