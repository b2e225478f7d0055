;; Wants to write.
(component
  (import "print" (func (param "text" string))))
